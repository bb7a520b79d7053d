// What stands behind one token: probabilities, weights, the longest suffix, the nearest contexts.

import { gainOf, shareOf } from "./colours.js";
import { bar, make } from "./dom.js";
import { bits, count, percent, plural, visible, weight } from "./format.js";

const BEFORE = 150; // characters of a neighbour's context that are shown
const NAMES = { lm: "model", knn: "kNN", "infini-gram": "∞-gram", text: "text so far" };

export class Inspector {
  /** Show tokens in a place; call `onOpen(name, store)` for a document, `onClose()` when it is closed. */
  constructor(place, { onOpen, onClose, onStep }) {
    this.place = place;
    this.onOpen = onOpen;
    this.onClose = onClose;
    this.onStep = onStep;
    place.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.onClose();
    });
    this.clear();
  }

  clear() {
    this.place.classList.remove("open");
    this.place.replaceChildren(
      make("p", { class: "hint" }, "Choose a token to see where its probability came from."),
      make("p", { class: "hint" }, make("kbd", {}, "←"), make("kbd", {}, "→"), make("kbd", {}, "↑"), make("kbd", {}, "↓"), " move, ", make("kbd", {}, "Esc"), " closes."),
    );
  }

  /** Show a token, given the text before it. */
  show(token, index, context) {
    this.place.classList.add("open");
    this.place.replaceChildren(
      this.#head(token, index),
      ...this.#verdict(token),
      probabilities(token),
      ...(token.weights ? [weights(token.weights)] : []),
      ...(token.suffix ? [this.#suffix(token.suffix)] : []),
      ...this.#neighbors(token, context),
    );
    this.place.scrollTop = 0;
  }

  #head(token, index) {
    const step = (label, text, by) => {
      const button = make("button", { type: "button", class: "quiet", "aria-label": label }, text);
      button.addEventListener("click", () => this.onStep(index + by));
      return button;
    };
    const close = make("button", { type: "button", class: "quiet close", "aria-label": "Close" }, "✕");
    close.addEventListener("click", () => this.onClose());
    return make(
      "div", { class: "head" },
      make("h2", {}, make("code", {}, visible(token.token))),
      make("span", { class: "status" }, `token ${index + 1}, id ${token.id ?? "–"}`),
      step("Token before", "‹", -1), step("Next token", "›", 1), close,
    );
  }

  #verdict(token) {
    const share = shareOf(token);
    const said = token.p_memory == null && !token.weight
      ? "The model alone."
      : `${percent(share)} of its probability came from the memory.`;
    const notes = [];
    if (token.searched === false && token.p_memory != null) notes.push("Its retrieval was skipped.");
    if (token.drafted) notes.push("Drafted from the memory, then checked by the model.");
    const gain = gainOf(token);
    const sign = Math.abs(gain) < 0.005 ? "" : gain > 0 ? "gain" : "loss";
    return [make("p", { class: "verdict" }, make("strong", { class: sign }, bits(gain)), ` ${[said, ...notes].join(" ")}`)];
  }

  #suffix({ length, count: times, document: name, store }) {
    const words = `The last ${plural(length, "token")} occur ${times === 1 ? "once" : `${count(times)} times`} in ${store ?? "the store"}`;
    return make("p", { class: "suffix" }, words, ...(name ? [", as in ", this.#link(name, store)] : []), ".");
  }

  #link(name, store) {
    const button = make("button", { type: "button", class: "link" }, name);
    button.addEventListener("click", () => this.onOpen(name, store));
    return button;
  }

  #neighbors(token, context) {
    const near = token.neighbors ?? [];
    if (!near.length) return [];
    const heaviest = Math.max(...near.map((one) => one.weight ?? 0), 1e-12);
    const list = make("ol", { class: "neighbors" });
    list.append(...near.map((one) => this.#neighbor(one, context, heaviest)));
    return [make("h3", {}, "Nearest contexts"), list];
  }

  #neighbor(one, context, heaviest) {
    const before = lastWords(one.before);
    const shared = sharedSuffix(before, context);
    const text = make(
      "p", { class: "context" },
      before.slice(0, before.length - shared),
      make("span", { class: "shared", title: "the same as here" }, before.slice(before.length - shared)),
      make("mark", { class: one.match ? "match" : "other" }, one.token.trim() ? one.token : visible(one.token)),
      one.after,
    );
    const head = make(
      "div", { class: "from" },
      this.#link(one.document, one.store),
      ...(one.store ? [make("span", { class: "status", title: "the store that it is in" }, one.store)] : []),
      make("span", { class: "status", title: "squared distance of the contexts" }, one.distance == null ? "" : `d ${one.distance.toPrecision(3)}`),
      make("span", { class: "status", title: "weight among the neighbours" }, weight(one.weight)),
    );
    return make("li", { class: one.match ? "match" : "" }, head, bar(["memory", (one.weight ?? 0) / heaviest]), text);
  }
}

/** p, p_LM and p_memory on one axis; p in the parts that it is made of. */
function probabilities({ p, p_lm, p_memory, weight: lam, weights: mixed }) {
  const share = p > 0 ? shareOf({ p, p_lm, p_memory, weight: lam }) : 0;
  const row = (name, title, value, times, parts) => make(
    "tr", {}, make("th", { scope: "row", title }, name), make("td", {}, percent(value)),
    make("td", { class: "bars" }, bar(...parts)), make("td", {}, times),
  );
  const body = make(
    "tbody", {},
    row("p", "probability of the token", p, "", [["lm", p * (1 - share)], ["memory", p * share]]),
    row("p LM", "of the model alone", p_lm, `× ${weight(1 - lam)}`, [["lm", p_lm]]),
    row("p memory", "of the memory alone", p_memory, `× ${weight(lam)}`, [["memory", p_memory ?? 0]]),
  );
  const caption = mixed ? "Weights are decided for each token." : `λ = ${weight(lam)}`;
  return make("table", { class: "probabilities" }, make("caption", {}, caption), body);
}

/** The weight of each expert of a mixture. */
function weights(given) {
  const list = make("dl", { class: "weights" });
  for (const [name, value] of Object.entries(given)) {
    list.append(make("div", {}, make("dt", {}, NAMES[name] ?? name), make("dd", {}, bar([name === "lm" ? "lm" : "memory", value]), make("span", {}, weight(value)))));
  }
  return make("div", {}, make("h3", {}, "Weights"), list);
}

/** The end of a context, from a word on. */
function lastWords(text) {
  return text.length <= BEFORE ? text : `…${text.slice(-BEFORE).replace(/^\S*\s/, "")}`;
}

/** How many characters at the end of two texts are the same, white space counted as one kind. */
function sharedSuffix(one, other) {
  const same = (a, b) => a === b || (/\s/.test(a ?? "") && /\s/.test(b ?? ""));
  let length = 0;
  while (length < one.length && length < other.length && same(one.at(-1 - length), other.at(-1 - length))) length += 1;
  return length;
}
