// The page's third job: what the stores hold, and the documents that they were made from.

import { ask } from "./api.js";
import { debounce, find, make } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { Run } from "./run.js";

const PAGE = 50;
const EXCERPT = 2000; // characters of a document that become a text to score

export class Stores {
  /** Show stores; `onUse(name)` chooses one, `onTake(kind, text)` takes a text over to write or score. */
  constructor({ onUse, onTake, onError }) {
    this.onUse = onUse;
    this.onTake = onTake;
    this.stores = [];
    this.current = null;
    this.shown = 0;
    this.listing = new Run({ onState: () => {}, onError: (error) => onError(error, () => this.list()) });
    this.reading = new Run({ onState: () => {}, onError: (error) => onError(error) });
    find("query").addEventListener("input", debounce(() => this.list(), 200));
    find("more").addEventListener("click", () => this.list(this.shown));
    this.#clear();
  }

  /** Draw the stores. */
  show(stores) {
    this.stores = stores;
    find("store-list").replaceChildren(...stores.map((store) => this.#card(store)));
  }

  /** Make one store the current one. */
  choose(store) {
    if (store === this.current) return;
    this.current = store;
    this.shown = 0;
    find("document-list").replaceChildren();
    find("found").textContent = "";
    this.#clear();
    for (const card of find("store-list").children) card.setAttribute("aria-pressed", card.dataset.name === store?.name);
  }

  /** List documents from an offset on; those before it stay. */
  list(offset = 0) {
    if (!this.current) return null;
    const query = find("query").value.trim();
    return this.listing.start(async (signal) => {
      const where = new URLSearchParams({ query, offset, limit: PAGE });
      const { total, documents, complete } = await ask(`${this.#path()}/documents?${where}`, { signal });
      const items = documents.map((document, index) => this.#item(document, document.number ?? offset + index));
      if (offset) find("document-list").append(...items);
      else find("document-list").replaceChildren(...items);
      this.shown = offset + documents.length;
      const all = plural(this.current.documents, "document");
      find("found").textContent = query ? `${count(total)} of ${all}${complete === false ? ", not all were searched" : ""}` : all;
      find("more").hidden = this.shown >= total;
      if (offset) items[0]?.firstChild.focus();
    });
  }

  /** Open the document of a name, found by searching for it. */
  async openByName(name) {
    find("query").value = name;
    await this.list();
    const buttons = [...find("document-list").querySelectorAll("button")];
    const wanted = buttons.find((button) => button.dataset.name === name);
    wanted?.click();
  }

  #path() {
    return `v1/nearlm/stores/${encodeURIComponent(this.current.name)}`;
  }

  #clear() {
    find("document").replaceChildren(make("p", { class: "hint" }, "Choose a document to read it."));
  }

  #card(store) {
    const { settings = {} } = store;
    const facts = {
      model: store.model,
      records: store.has_keys === false ? "none: text alone" : count(store.records),
      documents: count(store.documents),
      tokens: count(store.tokens),
      size: bytes(store.bytes),
      dim: store.dim,
      index: store.index,
      mixes: settings.mixture && settings.mixture !== "none" ? `mixture ${settings.mixture}` : settings.lam != null ? `λ = ${settings.lam}` : null,
    };
    const list = make("dl");
    for (const [name, value] of Object.entries(facts)) {
      if (value != null && value !== "") list.append(make("div", {}, make("dt", {}, name), make("dd", {}, String(value))));
    }
    const pressed = String(store === this.current);
    const card = make("button", { type: "button", "data-name": store.name, "aria-pressed": pressed }, make("strong", {}, store.name), list);
    card.addEventListener("click", () => this.onUse(store.name));
    return card;
  }

  #item(document, number) {
    const button = make(
      "button", { type: "button", "data-name": document.name },
      make("span", {}, document.name), make("span", { class: "status" }, plural(document.tokens, "token")),
    );
    button.addEventListener("click", () => this.#open(number, button));
    return make("li", {}, button);
  }

  #open(number, button) {
    return this.reading.start(async (signal) => {
      const { name, text } = await ask(`${this.#path()}/documents/${number}`, { signal });
      find("document-list").querySelector("[aria-current]")?.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      const place = find("document");
      place.replaceChildren(
        make("div", { class: "head" }, make("h2", {}, name), ...this.#takers(text)),
        make("pre", {}, ...highlighted(text, find("query").value.trim())),
      );
      place.scrollTop = Math.max((place.querySelector("mark")?.offsetTop ?? 0) - place.clientHeight / 2, 0);
      if (matchMedia("(max-width: 60rem)").matches) place.focus();
    });
  }

  /** Buttons that take a document's text to where it can be continued or scored. */
  #takers(text) {
    const taker = (label, kind, part) => {
      const button = make("button", { type: "button" }, label);
      button.addEventListener("click", () => this.onTake(kind, part));
      return button;
    };
    return [taker("Continue its beginning", "write", beginning(text)), taker("Score it", "score", text.slice(0, EXCERPT))];
  }
}

/** The first words of a text, not cut within a word. */
function beginning(text) {
  return text.slice(0, 240).replace(/\s+\S*$/, "");
}

/** A text with every place of a query marked. */
function highlighted(text, query) {
  if (!query) return [text];
  const parts = [];
  const low = text.toLowerCase();
  const wanted = query.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0 && low.length === text.length; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), make("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
