// @ts-check
/** The page of runs: their table and curves, the ticked runs, and the actions on them. */

import { curvesFigure, MAX_CURVES } from "./chart.js";
import { chatAddress, findAgain, lineOf, missingCurveNotes, selectionHint, summary } from "./selection.js";
import { RunsTable } from "./table.js";
import { VerdictView } from "./verdict.js";
import { get } from "../shared/api.js";
import { byId, element, pluralize, withCode } from "../shared/dom.js";

/** @typedef {import("./selection.js").Run} Run */
/** @typedef {import("./selection.js").Curve} Curve */
/** @typedef {import("./selection.js").Listing} Listing */

const WORKSPACE = "workspace";
const RELOAD_MS = 3000;
const column = byId("column", HTMLSelectElement);
const along = byId("along", HTMLSelectElement);
const chat = byId("chat", HTMLButtonElement);
const untick = byId("untick", HTMLButtonElement);
const refreshButton = byId("refresh", HTMLButtonElement);
/** @type {Set<string>} */
const ticked = new Set();
/** @type {Map<string, Curve>} */
const curves = new Map(); // by name and revision
const table = new RunsTable(byId("runs", HTMLElement), ticked, onTick);
const verdict = new VerdictView(byId("verdict", HTMLElement), tickAlso);
/** @type {Run[]} */
let runs = [];
let drawnPicture = ""; // what is drawn of which curves

/** @param {boolean} refresh whether the server lists the runs again */
async function load(refresh) {
  refreshButton.disabled = true;
  setText("state", "Reading the runs …");
  try {
    showListing(await get(refresh ? "/runs.json?refresh=1" : "/runs.json"));
  } catch (error) {
    setText("state", "");
    showProblem(messageOf(error));
  }
  refreshButton.disabled = false;
}

/** Show a listing. Runs stay ticked, also those that have another name.
 * @param {Listing} listing
 */
function showListing(listing) {
  const isNew = JSON.stringify(listing.runs) !== JSON.stringify(runs);
  const before = tickedRuns();
  ({ runs } = listing);
  ticked.clear();
  for (const run of before.flatMap((one) => findAgain(one, runs) ?? [])) ticked.add(run.name);
  setText("state", [summary(listing), ...listing.notes].join(" "));
  showProblem(listing.problem);
  if (isNew) table.show(runs); // else the focus would be lost
  onTick();
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

function tickedRuns() {
  return [...ticked].flatMap((name) => runs.find((run) => run.name === name) ?? []);
}

function onTick() {
  untick.disabled = !ticked.size;
  chat.disabled = !chatAddress(tickedRuns());
  chat.textContent = ticked.size === 1 ? "Chat with it" : "Chat side by side";
  setText("ticked", selectionHint(tickedRuns()));
  verdict.show(tickedRuns(), runs);
  readCurves();
}

/** Draw the curves of the ticked runs, each as soon as it is there. */
async function readCurves() {
  drawCurves();
  const missing = tickedRuns().filter((run, index) => index < MAX_CURVES && !curves.has(keyOf(run)));
  await Promise.all(
    missing.map(async (run) => {
      curves.set(keyOf(run), await fetchCurve(run).catch((error) => ({ problem: messageOf(error) })));
      drawCurves();
    }),
  );
}

function drawCurves() {
  const requested = tickedRuns();
  const some = requested.slice(0, MAX_CURVES);
  const lines = some.flatMap((run) => {
    const curve = curves.get(keyOf(run));
    return curve ? [lineOf(run, curve, column.value, along.value)] : [];
  });
  const picture = JSON.stringify([requested.map(keyOf), lines, along.value]);
  if (picture === drawnPicture) return; // not anew under the pointer or the cursor of the keyboard
  drawnPicture = picture;
  const notes = missingCurveNotes(lines);
  const left = some.length - lines.length;
  if (left) notes.push(`Reading ${left} of ${pluralize(some.length, "curve")} …`);
  if (requested.length > some.length) notes.push(`Only the first ${MAX_CURVES} curves are drawn.`);
  if (!requested.length) notes.push("No run is ticked.");
  const drawn = lines.filter(({ points }) => points.length);
  const figure = drawn.length ? [curvesFigure(drawn, along.value)] : [];
  byId("curves", HTMLElement).replaceChildren(
    ...figure,
    ...notes.map((note) => element("p", { className: "hint" }, note)),
  );
}

/** Draw the curve of the workspace anew whenever it has grown, but not under the cursor of the keyboard. */
async function reloadCurves() {
  const live = tickedRuns().filter(({ rev }) => rev === WORKSPACE);
  if (!document.hidden && !byId("curves", HTMLElement).querySelector(":focus-visible")) {
    await Promise.all(live.map(reloadCurve));
  }
  setTimeout(reloadCurves, RELOAD_MS);
}

/** @param {Run} run */
async function reloadCurve(run) {
  const curve = await fetchCurve(run).catch(() => null); // the server does not answer
  if (!curve || JSON.stringify(curve) === JSON.stringify(curves.get(keyOf(run)))) return;
  curves.set(keyOf(run), curve);
  drawCurves();
}

/** @param {Run} run @returns {Promise<Curve>} */
function fetchCurve({ name }) {
  return get(`/runs/${encodeURIComponent(name)}/curve.json`);
}

/** @param {Run} run */
function keyOf(run) {
  return `${run.name}\n${run.rev}`;
}

/** @param {string} id @param {string} text */
function setText(id, text) {
  byId(id, HTMLElement).textContent = text;
}

/** @param {string[]} names */
function tickAlso(names) {
  for (const name of names) ticked.add(name);
  table.markTicks();
  onTick();
}

for (const node of [column, along]) node.addEventListener("input", drawCurves);
chat.addEventListener("click", () => location.assign(chatAddress(tickedRuns()) ?? "/"));
untick.addEventListener("click", () => {
  ticked.clear();
  table.markTicks();
  onTick();
  byId("runs", HTMLElement).focus();
});
refreshButton.addEventListener("click", () => load(true));
load(false);
reloadCurves();
