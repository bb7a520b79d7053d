// How the memory is used: a switch and three sliders, each "auto" (the store's own) until it is moved.

import { find } from "./dom.js";
import { count, weight } from "./format.js";

const TEMPERATURES = [0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000];
const NEIGHBORS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];

const SLIDERS = {
  lam: { values: Array.from({ length: 101 }, (_, index) => index / 100), usual: 0.25, format: (value) => weight(value) },
  knn_temperature: { values: TEMPERATURES, usual: 10, format: (value) => String(+value.toPrecision(3)) },
  k: { values: NEIGHBORS, usual: 1024, format: count },
};

export class Settings {
  /** Read and reset the sliders; call `onChange()` when one was moved. */
  constructor(onChange) {
    this.onChange = onChange;
    this.chosen = {}; // only what was moved
    this.own = {}; // the store's
    this.searchable = true;
    find("memory").addEventListener("change", () => this.#changed());
    find("reset").addEventListener("click", () => this.#reset(Object.keys(SLIDERS)));
    for (const [name, { values }] of Object.entries(SLIDERS)) {
      const input = find(name);
      input.min = 0;
      input.max = values.length - 1;
      input.addEventListener("input", () => {
        this.chosen[name] = values[input.valueAsNumber];
        this.#changed();
      });
      input.addEventListener("dblclick", () => this.#reset([name]));
      this.#button(name).addEventListener("click", () => this.#reset([name]));
    }
    this.#show();
  }

  /** Show the settings of a store where nothing was chosen. */
  of(store) {
    this.own = store?.settings ?? {};
    this.searchable = store?.has_keys !== false; // without keys there is nothing to search, and nothing to set
    if (!this.searchable) this.chosen = {};
    this.#show();
  }

  /** The fields of a request. */
  get request() {
    return { memory: find("memory").checked, ...this.chosen };
  }

  #button(name) {
    return document.querySelector(`button[data-for="${name}"]`);
  }

  #reset(names) {
    for (const name of names) delete this.chosen[name];
    this.#changed();
  }

  #changed() {
    this.#show();
    this.onChange();
  }

  #show() {
    const on = find("memory").checked && this.searchable;
    for (const [name, slider] of Object.entries(SLIDERS)) {
      const input = find(name);
      const auto = !(name in this.chosen);
      const value = auto ? (this.own[name] ?? slider.usual) : this.chosen[name];
      if (auto) input.valueAsNumber = nearest(slider.values, value);
      const own = this.#own(name, slider);
      const text = auto ? own : slider.format(value);
      input.setAttribute("aria-valuetext", text);
      input.disabled = !on;
      input.classList.toggle("auto", auto);
      const button = this.#button(name);
      button.textContent = text;
      button.disabled = auto || !on;
      button.setAttribute("aria-label", auto ? `${name}: ${own}` : `${name} is ${text}: back to auto`);
      button.title = auto ? "the store's own; move the slider to change it" : "back to auto";
      button.classList.toggle("chosen", !auto);
    }
    find("reset").disabled = Object.keys(this.chosen).length === 0;
  }

  /** What "auto" stands for. */
  #own(name, { format }) {
    const { mixture, gate } = this.own;
    const decided = (kind) => kind && kind !== "none" && Object.keys(this.chosen).length === 0; // else one λ for all
    if (name === "lam" && decided(mixture)) return "auto (mixture)";
    if (name === "lam" && decided(gate)) return "auto (gate)";
    return this.own[name] == null ? "auto" : `auto (${format(this.own[name])})`;
  }
}

function nearest(values, wanted) {
  let best = 0;
  const far = (value) => Math.abs(Math.log((value + 1e-3) / (wanted + 1e-3)));
  values.forEach((value, index) => {
    if (far(value) < far(values[best])) best = index;
  });
  return best;
}
