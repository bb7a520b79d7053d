// The page: which store, which job, which token; the parts do the rest.

import { ask } from "./api.js";
import { showLegend } from "./colours.js";
import { debounce, find, make } from "./dom.js";
import { count } from "./format.js";
import { Inspector } from "./inspector.js";
import { Score } from "./score.js";
import { Settings } from "./settings.js";
import { Stores } from "./stores.js";
import { Tabs } from "./tabs.js";
import { Write } from "./write.js";

let stores = [];
let retry = null;
const changed = debounce(() => job()?.changed(), 250);
const settings = new Settings(changed);
const tabs = new Tabs(document.querySelector(".tabs"), openTab);
const shared = { model: () => find("store").value, settings: () => settings.request, onPick, onError: showError, onStatus: showJob };
const write = new Write(shared);
const score = new Score(shared);
const library = new Stores({ onUse: chooseStore, onTake: take, onError: showError });
const inspector = new Inspector(find("inspector"), { onOpen: openDocument, onClose: closeInspector, onStep: step });

function job() {
  return { write, score }[tabs.name];
}

/** Show an error in one line, with a button if there is something to try again; null hides it. */
function showError(error, again = null) {
  const place = find("error");
  retry = again;
  place.hidden = error == null;
  place.firstChild.textContent = error?.message ?? "";
  place.lastChild.hidden = again == null;
}

function onPick(token, index, view) {
  if (view !== job()?.view) return;
  if (token) inspector.show(token, index, view.contextOf(index));
  else inspector.clear();
}

/** Show what belongs to the open job: status, totals, legend, the chosen token. */
function showJob() {
  const current = job();
  if (!current) return;
  find("status").textContent = current.status;
  find("totals").hidden = !current.totals;
  find("totals").replaceChildren(...(current.totals ? [current.totals] : []));
}

function openTab(name) {
  const stores = name === "stores";
  document.body.dataset.tab = name;
  for (const id of ["write", "score", "stores"]) find(id).hidden = id !== name;
  if (stores) return library.list();
  const view = job().view;
  find("write-output").hidden = name !== "write";
  find("score-output").hidden = name !== "score";
  find("colour").value = view.place.dataset.colour;
  showLegend(find("legend"), view.place.dataset.colour);
  onPick(view.tokens[view.picked] ?? null, view.picked, view);
  return showJob();
}

function closeInspector() {
  const view = job()?.view;
  const was = view?.picked ?? -1;
  view?.pick(-1);
  view?.reached?.focus({ preventScroll: true });
  if (was >= 0) view.pick(-1); // the focus chose it again
}

function step(index) {
  const { view } = job();
  view.pick(Math.min(Math.max(index, 0), view.tokens.length - 1));
}

function openDocument(name, store) {
  if (store) library.choose(stores.find((each) => each.name === store) ?? null); // of several at once
  tabs.open("stores");
  library.openByName(name);
}

function chooseStore(name) {
  useStore(name);
  changed();
}

function useStore(name) {
  const store = stores.find((each) => each.name === name) ?? null;
  find("store").value = name;
  settings.of(store ?? { has_keys: false }); // several at once have settings of their own each
  library.choose(store ?? stores.find((each) => name?.startsWith(`${each.name}+`)) ?? null);
  if (tabs.name === "stores") library.list();
}

/** Take a text over from a document and begin with it. */
function take(kind, text) {
  find(kind === "write" ? "prompt" : "text").value = text;
  tabs.open(kind);
  job().start();
}

async function load() {
  try {
    showError(null);
    const served = await ask("v1/nearlm/stores");
    stores = served.stores;
    const options = stores.map(({ name, records }) => make("option", { value: name }, `${name} (${count(records)})`));
    const together = (served.together ?? []).map((name) => make("option", { value: name }, `${name} (at once)`));
    find("store").replaceChildren(...options, ...together);
    find("store").disabled = stores.length < 2;
    library.show(stores);
    useStore(stores[0]?.name);
  } catch (error) {
    showError(error, load);
  }
}

find("store").addEventListener("change", () => chooseStore(find("store").value));
find("colour").addEventListener("change", () => {
  const { place } = job().view;
  place.dataset.colour = find("colour").value;
  showLegend(find("legend"), find("colour").value);
});
find("error").lastChild.addEventListener("click", () => retry?.());
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && job()) {
    event.preventDefault();
    document.querySelector(`#${tabs.name} form`).requestSubmit();
  }
});
tabs.start();
load();
