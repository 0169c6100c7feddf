// @ts-check
/** The page of runs: their table and charts, the ticked runs, and the actions on them. */

import { curvesFigure, MAX_CURVES } from "./curves.js";
import { chatAddress, fetchChangedCurve, fetchCurve, fetchRuns } from "./requests.js";
import { COSTS, kindsOf, scatterFigure } from "./scatter.js";
import { canChat, findAgain, missingCurveNotes, selectionHint, lineOf, passes, summary, valuesOf } from "./selection.js";
import { merged } from "./groups.js";
import { RunsTable } from "./table.js";
import { VerdictView } from "./verdict.js";
import { onKeyNeeded } from "../shared/api.js";
import { promptForKey } from "../shared/dialogs.js";
import { byId, element, withCode } from "../shared/dom.js";
import { pluralize } from "../shared/text_format.js";

/** @typedef {import("./requests.js").Run} Run */
/** @typedef {import("./requests.js").Curve} Curve */

const ALL = "";
const WORKSPACE = "workspace";
const RELOAD_MS = 3000;
const [tokenizer, depth, column, along, against] = ["tokenizer", "depth", "column", "along", "against"].map((id) =>
  byId(id, HTMLSelectElement),
);
const [chat, untick, refreshButton] = ["chat", "untick", "refresh"].map((id) =>
  byId(id, HTMLButtonElement),
);
const [named, merge] = ["named", "merge"].map((id) => byId(id, HTMLInputElement));
/** @type {Set<string>} */
const ticked = new Set();
/** @type {Map<string, { loaded: Curve | null, loading: Promise<Curve> }>} */
const curves = new Map(); // by name and revision
const table = new RunsTable(byId("runs", HTMLElement), ticked, onTick);
const verdict = new VerdictView(byId("verdict", HTMLElement), tickAlso);
/** @type {Run[]} */
let runs = [];
let listed = false; // whether a listing is shown
let drawnPicture = ""; // what is drawn of which curves

/** @param {boolean} refresh whether the server lists the runs again */
async function load(refresh) {
  refreshButton.disabled = true;
  setText("state", "Reading the runs …");
  try {
    const early = await fetchRuns({ refresh, early: true });
    showListing(early);
    if (!early.complete) showListing(await fetchRuns());
  } catch (error) {
    setText("state", "");
    showProblem(messageOf(error));
  }
  refreshButton.disabled = false;
}

/** @param {import("./requests.js").Listing} listing */
function showListing(listing) {
  const isNew = !listed || JSON.stringify(listing.runs) !== JSON.stringify(runs);
  listed = true;
  const before = tickedRuns();
  ({ runs } = listing);
  keepTicks(before);
  setText("state", [summary(listing), ...listing.notes].join(" "));
  showProblem(listing.problem);
  if (isNew) showRuns(); // else the focus would be lost
  onTick();
}

function showRuns() {
  setOptions(tokenizer, valuesOf(runs, "tokenizer").sort());
  setOptions(depth, valuesOf(runs, "depth").sort((one, other) => one - other));
  show();
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @param {string | null} problem */
function showProblem(problem) {
  const node = byId("problem", HTMLElement);
  node.hidden = !problem;
  node.replaceChildren(...withCode(problem ?? ""));
}

/** Tick the runs that were ticked, also those that have another name or state.
 * @param {Run[]} before
 */
function keepTicks(before) {
  ticked.clear();
  for (const run of before.flatMap((one) => findAgain(one, runs) ?? [])) ticked.add(run.name);
}

/** Set the options of a select; the chosen value remains if it is among them.
 * @param {HTMLSelectElement} select
 * @param {unknown[]} values
 */
function setOptions(select, values) {
  const chosen = select.value;
  const options = values.map((value) => element("option", { value: String(value) }, String(value)));
  select.replaceChildren(element("option", { value: ALL }, "any"), ...options);
  select.value = values.map(String).includes(chosen) ? chosen : ALL;
}

function show() {
  const filter = { tokenizer: tokenizer.value, depth: depth.value, named: named.value };
  const shown = runs.filter((run) => passes(run, filter));
  table.show(merge.checked ? merged(shown) : shown);
  const none = runs.length && !shown.length;
  setText("ticked", none ? "No run fits these filters." : selectionHint(tickedRuns()));
  const cost = COSTS.find(({ key }) => key === against.value) ?? COSTS[0];
  byId("scatter", HTMLElement).replaceChildren(scatterFigure(shown, cost, kindsOf(runs)));
}

function tickedRuns() {
  return [...ticked].flatMap((name) => runs.find((run) => run.name === name) ?? []);
}

function onTick() {
  untick.disabled = !ticked.size;
  chat.disabled = !canChat(tickedRuns());
  chat.textContent = ticked.size === 1 ? "Chat with it" : "Chat side by side";
  setText("ticked", selectionHint(tickedRuns()));
  verdict.show(tickedRuns(), runs);
  drawCurves();
}

/** Draw the curves of the ticked runs, each as soon as it is there. */
async function drawCurves() {
  const requested = tickedRuns();
  const keys = requested.map(keyOf).join();
  const loaded = requested.slice(0, MAX_CURVES).map((run) => entryOf(run).loaded);
  const isCurrent = () => keys === tickedRuns().map(keyOf).join(); // the ticks may have changed meanwhile
  drawLoaded(requested, loaded);
  await Promise.all(
    loaded.map(async (_, index) => {
      loaded[index] = await entryOf(requested[index]).loading;
      if (isCurrent()) drawLoaded(requested, loaded);
    }),
  );
}

/** @param {Run[]} requested @param {(Curve | null)[]} loaded null for a curve that is still being read */
function drawLoaded(requested, loaded) {
  const picture = JSON.stringify([requested.map(keyOf), loaded, column.value, along.value]);
  if (picture === drawnPicture) return; // not anew under the pointer or the cursor of the keyboard
  drawnPicture = picture;
  const node = byId("curves", HTMLElement);
  const lines = loaded.flatMap((curve, index) =>
    curve ? [lineOf(requested[index], curve, column.value, along.value)] : [],
  );
  const notes = missingCurveNotes(lines);
  const [count, left] = [requested.length, loaded.length - lines.length];
  if (left) notes.push(`Reading ${left} of ${pluralize(loaded.length, "curve")} …`);
  if (count > MAX_CURVES) notes.push(`Only the first ${MAX_CURVES} of ${count} curves are drawn.`);
  if (!count) notes.push("No run is ticked.");
  const drawn = lines.filter(({ points }) => points.length);
  const figure = drawn.length ? [curvesFigure(drawn, along.value)] : [];
  node.replaceChildren(...figure, ...notes.map((note) => element("p", { className: "hint" }, note)));
}

/** The curve of a run, or the problem with it; each is fetched once.
 * @param {Run} run
 */
function entryOf(run) {
  const known = curves.get(keyOf(run));
  if (known) return known;
  const loading = fetchCurve(run.name).catch((error) => ({ problem: messageOf(error) }));
  /** @type {{ loaded: Curve | null, loading: Promise<Curve> }} */
  const entry = { loaded: null, loading };
  loading.then((curve) => (entry.loaded = curve));
  curves.set(keyOf(run), entry);
  return entry;
}

/** Draw the curves of runs that train anew whenever they have grown, but not under the cursor of the keyboard. */
async function reloadCurves() {
  const live = tickedRuns().filter(({ rev, state }) => rev === WORKSPACE || state === "running");
  if (!document.hidden && !byId("curves", HTMLElement).querySelector(":focus-visible")) {
    await Promise.all(live.map(reloadCurve));
  }
  setTimeout(reloadCurves, RELOAD_MS);
}

/** @param {Run} run */
async function reloadCurve(run) {
  const before = await entryOf(run).loading;
  const curve = await fetchChangedCurve(run.name, before);
  if (!curve) return;
  if (run.rev !== WORKSPACE && !Object.keys(curve).length) {
    await load(true); // DVC has removed the folder in which it trained: it is done, or has failed
    return;
  }
  curves.set(keyOf(run), { loaded: curve, loading: Promise.resolve(curve) });
  await drawCurves();
}

/** @param {Run} run */
function keyOf(run) {
  return `${run.name}\n${run.rev}`;
}

/** @param {string} id @param {string} text */
function setText(id, text) {
  byId(id, HTMLElement).textContent = text;
}

function openChat() {
  location.assign(chatAddress(tickedRuns().map((run) => run.name)));
}

/** @param {string[]} names */
function tickAlso(names) {
  for (const name of names) ticked.add(name);
  table.markTicks();
  onTick();
}

function untickAll() {
  ticked.clear();
  table.markTicks();
  onTick();
  byId("runs", HTMLElement).focus();
}

against.append(...COSTS.map(({ key, title }) => element("option", { value: key }, title)));
for (const node of [tokenizer, depth, named, merge, against]) node.addEventListener("input", show);
for (const node of [column, along]) node.addEventListener("input", drawCurves);
chat.addEventListener("click", openChat);
untick.addEventListener("click", untickAll);
refreshButton.addEventListener("click", () => load(true));
onKeyNeeded(promptForKey);
load(false);
reloadCurves();
