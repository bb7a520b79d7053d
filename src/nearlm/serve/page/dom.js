// Elements. Text only ever becomes a text node, so nothing from a model or a document is read as HTML.

export const find = (id) => document.getElementById(id);

/** Make an element with attributes and children (elements or strings). */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Make a horizontal bar of parts, each [class, share of the whole]. */
export function bar(...parts) {
  const track = make("span", { class: "track", "aria-hidden": "true" });
  for (const [kind, share] of parts) {
    const part = make("span", { class: kind });
    part.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`; // through the CSSOM, which the CSP allows
    track.append(part);
  }
  return track;
}

/** Call an action once it was asked for and then not again for some milliseconds. */
export function debounce(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** Bring the settings and what is below them into view, if the result would begin far down. */
export function showResult() {
  if (find("result").getBoundingClientRect().top > innerHeight * 0.6) find("settings").scrollIntoView({ block: "start" });
}

/** Say something to a screen reader. */
export function announce(message) {
  find("live").textContent = message;
}
