// Numbers and tokens as people read them.

const counts = new Intl.NumberFormat("en");

export const count = (value) => (value == null ? "–" : counts.format(value));

export const plural = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;

/** A probability: 41 %, 3.2 %, 0.041 %, 2.1e-7. */
export function percent(p) {
  if (p == null || Number.isNaN(p)) return "–";
  const value = p * 100;
  if (value === 0) return "0 %";
  if (value < 0.01) return p.toExponential(1);
  return `${value >= 9.95 ? value.toFixed(0) : value.toPrecision(2)} %`;
}

/** A weight between 0 and 1. */
export function weight(value) {
  if (value == null) return "–";
  if (value > 0 && value < 0.0005) return "<0.001";
  return value.toFixed(value > 0 && value < 0.0995 ? 3 : 2);
}

/** Bits with their sign. */
export function bits(value) {
  if (!Number.isFinite(value)) return "–";
  const rounded = Math.abs(value).toFixed(2);
  return `${rounded === "0.00" ? "±" : value > 0 ? "+" : "−"}${rounded} bits`;
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  for (; value >= 1000 && power < units.length - 1; power += 1) value /= 1000;
  return `${value >= 100 || power === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[power]}`;
}

/** A token with its white space to be seen. */
export function visible(token) {
  return token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍") || "∅";
}
