// A text of tokens: appended as they arrive and never drawn again, chosen with the mouse or the keyboard.

import { classesOf } from "./colours.js";
import { make } from "./dom.js";

const CONTEXT = 400; // characters before a token that are compared with its neighbours' contexts

export class TokenView {
  /** Show tokens in a place; call `onPick(token, index, view)` when one is chosen, or with null. */
  constructor(place, label, onPick) {
    this.place = place;
    this.onPick = onPick;
    this.tokens = [];
    this.prompt = "";
    this.picked = -1;
    this.pending = 0; // tokens at the end that are not on the page yet
    this.reached = null; // the token that the tab key reaches
    this.changed = -1; // the first token that differs from the run before
    this.before = []; // ids of the run before, to mark where a new one differs
    this.list = make("span", { role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
    this.list.addEventListener("click", (event) => this.#click(event));
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("focusin", (event) => this.#focused(event));
  }

  get empty() {
    return this.tokens.length === 0;
  }

  /** Begin a new text after a prompt, which is shown but not coloured. */
  begin(prompt = "") {
    this.before = this.prompt === prompt ? this.tokens.map((token) => token.id) : [];
    this.changed = -1;
    this.tokens = [];
    this.pending = 0;
    this.prompt = prompt;
    this.pick(-1);
    this.place.style.minHeight = `${Math.min(this.place.offsetHeight, 600)}px`; // nothing jumps while it fills again
    this.list.replaceChildren();
    this.place.replaceChildren(make("span", { class: "given" }, prompt), this.list);
  }

  /** Add tokens; they are drawn together at the next frame. */
  append(tokens) {
    if (!tokens.length) return;
    this.tokens.push(...tokens);
    if (this.pending === 0) requestAnimationFrame(() => this.flush());
    this.pending += tokens.length;
  }

  /** Draw what is pending. */
  flush() {
    const fragment = document.createDocumentFragment();
    for (let index = this.tokens.length - this.pending; index < this.tokens.length; index += 1) {
      fragment.append(this.#draw(this.tokens[index], index));
    }
    this.pending = 0;
    this.list.append(fragment);
  }

  end() {
    this.flush();
    this.place.style.minHeight = "";
  }

  /** The text before a token, as far as it matters. */
  contextOf(index) {
    let text = "";
    for (let place = index - 1; place >= 0 && text.length < CONTEXT; place -= 1) text = this.tokens[place].token + text;
    return (text.length < CONTEXT ? this.prompt + text : text).slice(-CONTEXT);
  }

  /** Choose a token, -1 for none. */
  pick(index) {
    this.list.children[this.picked]?.setAttribute("aria-selected", "false");
    const span = this.list.children[index];
    this.picked = span ? index : -1;
    if (span) {
      span.setAttribute("aria-selected", "true");
      this.#reach(span);
    }
    this.onPick(span ? this.tokens[index] : null, this.picked, this);
    span?.scrollIntoView({ block: "nearest" });
  }

  /** Choose a token and move the focus there. */
  focus(index) {
    const span = this.list.children[Math.min(Math.max(index, 0), this.list.children.length - 1)];
    span?.focus();
  }

  #draw(token, index) {
    const span = document.createElement("span");
    span.className = classesOf(token);
    span.textContent = token.token;
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.tabIndex = -1;
    if (index === 0) this.#reach(span);
    if (/^\s*\n/.test(token.token)) span.classList.add("newline");
    if (this.changed < 0 && index < this.before.length && this.before[index] !== token.id) {
      this.changed = index;
      span.classList.add("changed");
    }
    return span;
  }

  /** Let the tab key reach this token, and no other. */
  #reach(span) {
    if (this.reached) this.reached.tabIndex = -1;
    this.reached = span;
    span.tabIndex = 0;
  }

  #indexOf(span) {
    return Array.prototype.indexOf.call(this.list.children, span);
  }

  #click(event) {
    const span = event.target.closest('[role="option"]');
    if (!span) return;
    this.pick(this.#indexOf(span));
    span.focus({ preventScroll: true });
  }

  #focused(event) {
    const index = this.#indexOf(event.target);
    if (index >= 0 && index !== this.picked) this.pick(index);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.#indexOf(event.target);
    const last = this.list.children.length - 1;
    const moves = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => this.#lineFrom(at, 1),
      ArrowUp: () => this.#lineFrom(at, -1),
      Home: () => 0,
      End: () => last,
      Enter: () => at,
      " ": () => at,
    };
    if (event.key === "Escape") this.pick(-1);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = moves[event.key]();
    if (to === at) this.pick(at);
    else this.focus(to);
  }

  /** The token above or below one, nearest to its middle. */
  #lineFrom(at, direction) {
    const spans = this.list.children;
    const middle = (rect) => (rect.left + rect.right) / 2;
    const from = spans[at].getClientRects()[0];
    let line = null;
    let best = at;
    let nearest = Infinity;
    for (let index = at + direction; spans[index]; index += direction) {
      const rect = spans[index].getClientRects()[0];
      if (!rect || Math.abs(rect.top - from.top) < 4) continue;
      line ??= rect.top;
      if (Math.abs(rect.top - line) >= 4) break;
      const far = Math.abs(middle(rect) - middle(from));
      if (far < nearest) [best, nearest] = [index, far];
    }
    return best;
  }
}
