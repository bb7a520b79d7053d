// The page's second job: colour a text by what the memory gained or lost on it.

import { ask } from "./api.js";
import { gainOf } from "./colours.js";
import { announce, find, make, showResult } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { Run } from "./run.js";
import { TokenView } from "./tokens.js";

const NEIGHBORS = 5;
const FELT = 0.1; // bits from which on a token counts as better or worse

export class Score {
  constructor({ model, settings, onPick, onError, onStatus }) {
    this.model = model;
    this.settings = settings;
    this.onError = onError;
    this.onStatus = onStatus;
    this.status = "";
    this.view = new TokenView(find("score-output"), "Scored tokens", onPick);
    this.run = new Run({ onState: (running) => this.#state(running), onError: (error) => onError(error, () => this.start()) });
    find("score-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
      showResult();
    });
    find("score-stop").addEventListener("click", () => this.run.stop());
  }

  /** Score again, if something was scored already. */
  changed() {
    const begun = this.run.running || !this.view.empty;
    if (begun && JSON.stringify(this.#request()) !== this.asked) this.start();
  }

  start() {
    const body = this.#request();
    if (!body.text.trim()) return this.onError(new Error("There is no text to score. Paste one first."));
    this.onError(null);
    this.asked = JSON.stringify(body);
    return this.run.start((signal) => this.#score(body, signal));
  }

  #request() {
    return {
      model: this.model(),
      text: find("text").value,
      nearlm: { explain: true, neighbors: NEIGHBORS, ...this.settings() },
    };
  }

  async #score(body, signal) {
    const found = await ask("v1/nearlm/score", { body, signal });
    this.view.begin(unscored(body.text, found.tokens));
    this.view.append(found.tokens);
    this.view.end();
    const better = found.tokens.filter((token) => gainOf(token) >= FELT).length;
    const worse = found.tokens.filter((token) => gainOf(token) <= -FELT).length;
    this.status = `${plural(found.tokens.length, "token")} · ${count(better)} better, ${count(worse)} worse`;
    this.totals = totals(found);
    this.onStatus();
    announce(`Scored: ${this.status}`);
  }

  #state(running) {
    find("score-stop").disabled = !running;
    find("score-output").setAttribute("aria-busy", running);
    if (running) this.status = "scoring …";
    else if (this.status.endsWith("…")) this.status = "";
    this.onStatus();
  }
}

/** The beginning of a text that nothing predicts, as its first token without a BOS. */
function unscored(text, tokens) {
  const scored = tokens.map((token) => token.token).join("");
  return text.endsWith(scored) ? text.slice(0, text.length - scored.length) : "";
}

/** A table of what a text costs with and without the memory. */
function totals(found) {
  const bits = (name) => found.tokens.reduce((sum, token) => sum - Math.log2(Math.max(token[name], 1e-300)), 0);
  const withMemory = bits("p");
  const alone = withMemory > 0 ? (found.bits_per_byte * bits("p_lm")) / withMemory : found.bits_per_byte;
  const row = (name, lm, memory, digits) => make(
    "tr", {}, make("th", { scope: "row" }, name), make("td", {}, short(lm, digits)), make("td", {}, short(memory, digits)),
    make("td", { class: memory < lm ? "gain" : memory > lm ? "loss" : "" }, change(lm, memory)),
  );
  const head = make("thead", {}, make("tr", {}, make("td"), ...["model", "with memory", "change"].map((name) => make("th", { scope: "col" }, name))));
  return make(
    "table", {}, head,
    make("tbody", {}, row("bits per byte", alone, found.bits_per_byte, 3), row("perplexity", found.perplexity_lm, found.perplexity, 2)),
  );
}

const short = (value, digits) => value.toFixed(value >= 100 ? 1 : digits);

function change(from, to) {
  const share = to / from - 1;
  const sign = Math.abs(share) < 0.0005 ? "±" : share > 0 ? "+" : "−";
  return `${sign}${percent(Math.abs(share))}`;
}
