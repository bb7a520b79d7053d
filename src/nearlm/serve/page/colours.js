// Two scales: how much of a token's probability came from the memory, and what the memory gained or lost.

import { make } from "./dom.js";

const SHARES = [0.05, 0.25, 0.5, 0.75, 0.95]; // upper ends of the steps s0 to s4; s5 is above
const GAINS = [0.1, 0.5, 1.5, 3]; // bits; upper ends of the steps 0 to 3, 4 is above

/** How much of p came from the memory, 0 to 1. */
export function shareOf({ p, p_lm, p_memory, weight }) {
  if (!p || !weight) return 0;
  const share = p_memory == null ? 1 - ((1 - weight) * p_lm) / p : (weight * p_memory) / p;
  return Math.min(Math.max(share, 0), 1);
}

/** How many bits fewer a token needs than with the model alone. */
export function gainOf({ p, p_lm }) {
  return p > 0 && p_lm > 0 ? Math.log2(p) - Math.log2(p_lm) : 0;
}

const step = (value, ends) => {
  const place = ends.findIndex((end) => value < end);
  return place < 0 ? ends.length : place;
};

/** The classes that colour a token on both scales; CSS shows the one that is chosen. */
export function classesOf(token) {
  const gain = gainOf(token);
  const far = step(Math.abs(gain), GAINS);
  return `t s${step(shareOf(token), SHARES)} ${far === 0 ? "g0" : gain > 0 ? `g${far}` : `l${far}`}`;
}

const LEGENDS = {
  share: ["0 %", ["s0", "s1", "s2", "s3", "s4", "s5"], "100 %"],
  gain: ["worse", ["l4", "l3", "l2", "l1", "g0", "g1", "g2", "g3", "g4"], "better"],
};

/** Show the legend of a scale. */
export function showLegend(place, scale) {
  const [low, steps, high] = LEGENDS[scale];
  const swatches = make("span", { class: "swatches", "data-colour": scale, "aria-hidden": "true" });
  swatches.append(...steps.map((each) => make("span", { class: `t ${each}` })));
  place.replaceChildren(make("span", {}, low), swatches, make("span", {}, high));
}
