// The page's first job: go on from a prompt, token by token.

import { stream } from "./api.js";
import { shareOf } from "./colours.js";
import { announce, debounce, find, showResult } from "./dom.js";
import { percent, plural } from "./format.js";
import { Run } from "./run.js";
import { TokenView } from "./tokens.js";

const NEIGHBORS = 5;

export class Write {
  constructor({ model, settings, onPick, onError, onStatus }) {
    this.model = model;
    this.settings = settings;
    this.onError = onError;
    this.onStatus = onStatus;
    this.status = "";
    this.view = new TokenView(find("write-output"), "Generated tokens", onPick);
    this.run = new Run({ onState: (running) => this.#state(running), onError: (error) => onError(error, () => this.start()) });
    find("prompt-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
      showResult();
    });
    find("stop").addEventListener("click", () => this.run.stop());
    const again = debounce(() => this.changed(), 250);
    for (const id of ["max-tokens", "temperature", "seed"]) find(id).addEventListener("input", again);
  }

  /** Write again, if something was written already. */
  changed() {
    const begun = this.run.running || !this.view.empty;
    if (begun && JSON.stringify(this.#request()) !== this.asked) this.start();
  }

  start() {
    if (!find("prompt-form").reportValidity()) return null;
    const body = this.#request();
    if (!body.prompt.trim()) return this.onError(new Error("The prompt is empty. Type the beginning of a text first."));
    this.onError(null);
    this.asked = JSON.stringify(body);
    return this.run.start((signal) => this.#write(body, signal));
  }

  #request() {
    return {
      model: this.model(),
      prompt: find("prompt").value,
      stream: true,
      max_tokens: find("max-tokens").valueAsNumber,
      temperature: find("temperature").valueAsNumber,
      seed: find("seed").valueAsNumber,
      nearlm: { explain: true, neighbors: NEIGHBORS, ...this.settings() },
    };
  }

  async #write(body, signal) {
    const { view } = this;
    const { prompt } = body;
    let begun = 0;
    try {
      for await (const event of stream("v1/completions", body, signal)) {
        const tokens = event.choices?.[0]?.nearlm?.tokens ?? [];
        if (!tokens.length) continue;
        if (!begun) view.begin(prompt); // the old text stays until the new one is there
        begun ||= performance.now();
        view.append(tokens);
        this.#say(begun, false);
      }
    } finally {
      if (begun) {
        view.end();
        this.#say(begun, true, signal.aborted);
      }
    }
    if (!begun) this.#nothing(prompt);
  }

  /** The first token ended the text. */
  #nothing(prompt) {
    this.view.begin(prompt);
    this.view.end();
    this.status = "the text ends here";
    this.onStatus();
  }

  #say(begun, done, stopped = false) {
    const { tokens, changed, before } = this.view;
    const seconds = (performance.now() - begun) / 1000;
    const said = [plural(tokens.length, "token")];
    if (tokens.length > 1 && seconds > 0.2) said.push(`${((tokens.length - 1) / seconds).toFixed(1)}/s`);
    if (done) {
      const share = tokens.reduce((sum, token) => sum + shareOf(token), 0) / Math.max(tokens.length, 1);
      said.push(`${percent(share)} memory`);
      if (changed >= 0) said.push(`new from token ${changed + 1} on`);
      else if (before.length) said.push("the same as before");
      if (stopped) said.push("stopped");
    }
    this.status = said.join(" · ");
    this.onStatus();
    if (done) announce(`${stopped ? "Stopped" : "Finished"}: ${this.status}`);
  }

  #state(running) {
    find("stop").disabled = !running;
    find("write-output").setAttribute("aria-busy", running);
    if (running) this.status = "reading the prompt …";
    else if (this.status.endsWith("…")) this.status = "";
    this.onStatus();
  }
}
