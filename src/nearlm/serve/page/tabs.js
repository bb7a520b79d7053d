// Tabs: the arrow keys move between them, the address remembers which one is open.

export class Tabs {
  /** Follow the tabs of a list; call `onOpen(name)` when one is opened. */
  constructor(list, onOpen) {
    this.tabs = [...list.querySelectorAll('[role="tab"]')];
    this.onOpen = onOpen;
    this.names = this.tabs.map((tab) => tab.getAttribute("aria-controls"));
    list.addEventListener("click", (event) => {
      const tab = event.target.closest('[role="tab"]');
      if (tab) this.open(tab.getAttribute("aria-controls"));
    });
    list.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("hashchange", () => this.#fromAddress());
  }

  /** Open the tab that the address names, or the first. */
  start() {
    this.#fromAddress();
  }

  open(name) {
    this.name = name;
    for (const tab of this.tabs) {
      const chosen = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
    this.onOpen(name);
  }

  #fromAddress() {
    const name = location.hash.slice(1);
    if (name === this.name) return;
    if (this.names.includes(name)) this.open(name);
    else if (!this.name) this.open(this.names[0]);
  }

  #key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const to = (this.names.indexOf(this.name) + by + this.names.length) % this.names.length;
    this.open(this.names[to]);
    this.tabs[to].focus();
  }
}
