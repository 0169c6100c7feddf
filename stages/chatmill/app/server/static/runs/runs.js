// @ts-check
/** The page of runs: what is shown of them, what is ticked, and what is done with those. */

import { curvesFigure, MOST } from "./curves.js";
import { chatAddress, fetchCurve, fetchRuns } from "./requests.js";
import { COSTS, kindsOf, scatterFigure } from "./scatter.js";
import { aboutTicked, canChat, lacks, lineOf, passes, summary, valuesOf } from "./selection.js";
import { RunsTable } from "./table.js";
import { onKeyNeeded } from "../shared/api.js";
import { askedKey } from "../shared/dialogs.js";
import { byId, element } from "../shared/dom.js";

/** @typedef {import("./requests.js").Run} Run */
/** @typedef {import("./requests.js").Curve} Curve */

const ALL = "";
const WORKSPACE = "workspace";
const [tokenizer, depth, column, along, against] = ["tokenizer", "depth", "column", "along", "against"].map((id) =>
  byId(id, HTMLSelectElement),
);
const [chat, untick, refresh] = ["chat", "untick", "refresh"].map((id) => byId(id, HTMLButtonElement));
const named = byId("named", HTMLInputElement);
/** @type {Set<string>} */
const ticked = new Set();
/** @type {Map<string, Promise<Curve>>} */
const curves = new Map(); // by name and revision
const table = new RunsTable(byId("runs", HTMLElement), ticked, onTick);
/** @type {Run[]} */
let runs = [];
let ticket = "";

/** @param {boolean} anew */
async function load(anew) {
  refresh.disabled = true;
  say("state", "Reading the runs … DVC takes half a second for one that it has not read before.");
  try {
    const listing = await fetchRuns(anew);
    ({ runs, ticket } = listing);
    say("state", [summary(listing), ...listing.notes].join(" "));
    tell(listing.problem);
  } catch (error) {
    say("state", "");
    tell(messageOf(error));
  }
  refresh.disabled = false;
  forgetWhatIsGone();
  offer(tokenizer, valuesOf(runs, "tokenizer").sort());
  offer(depth, valuesOf(runs, "depth").sort((one, other) => one - other));
  show();
  onTick();
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @param {string | null} problem */
function tell(problem) {
  const node = byId("problem", HTMLElement);
  node.hidden = !problem;
  node.textContent = problem ?? "";
}

function forgetWhatIsGone() {
  const names = new Set(runs.map((run) => run.name));
  for (const name of ticked) if (!names.has(name)) ticked.delete(name);
  for (const key of curves.keys()) if (key.endsWith(`\n${WORKSPACE}`)) curves.delete(key); // it may have changed
}

/** The choices of a select; what was chosen stays, where it is still there.
 * @param {HTMLSelectElement} select
 * @param {unknown[]} values
 */
function offer(select, values) {
  const chosen = select.value;
  const options = values.map((value) => element("option", { value: String(value) }, String(value)));
  select.replaceChildren(element("option", { value: ALL }, "any"), ...options);
  select.value = values.map(String).includes(chosen) ? chosen : ALL;
}

function show() {
  const filter = { tokenizer: tokenizer.value, depth: depth.value, named: named.value };
  const found = runs.filter((run) => passes(run, filter));
  table.show(found, ticket);
  const none = runs.length && !found.length;
  say("ticked", none ? "No run fits these filters." : aboutTicked(chosen()));
  const cost = COSTS.find(({ key }) => key === against.value) ?? COSTS[0];
  byId("scatter", HTMLElement).replaceChildren(scatterFigure(found, cost, kindsOf(runs)));
}

function chosen() {
  return [...ticked].flatMap((name) => runs.find((run) => run.name === name) ?? []);
}

function onTick() {
  untick.disabled = !ticked.size;
  chat.disabled = !canChat(chosen());
  chat.textContent = ticked.size === 1 ? "Chat with it" : "Chat side by side";
  say("ticked", aboutTicked(chosen()));
  drawCurves();
}

async function drawCurves() {
  const node = byId("curves", HTMLElement);
  const asked = chosen();
  const found = await Promise.all(asked.slice(0, MOST).map(curveOf));
  if (asked.map(keyOf).join() !== chosen().map(keyOf).join()) return; // another tick came meanwhile
  const lines = found.map((curve, index) => lineOf(asked[index], curve, column.value, along.value));
  const notes = lacks(lines);
  if (asked.length > MOST) notes.push(`The first ${MOST} of ${asked.length} are drawn: more cannot be told apart.`);
  if (!asked.length) notes.push("None is ticked.");
  const drawn = lines.filter(({ points }) => points.length);
  const figure = drawn.length ? [curvesFigure(drawn, along.value)] : [];
  node.replaceChildren(...figure, ...notes.map((note) => element("p", { className: "hint" }, note)));
}

/** The curve of a run, or the problem with it; each is asked for once.
 * @param {Run} run
 */
function curveOf(run) {
  const key = keyOf(run);
  const curve = curves.get(key) ?? fetchCurve(run.name).catch((error) => ({ problem: messageOf(error) }));
  curves.set(key, curve);
  return curve;
}

/** @param {Run} run */
function keyOf(run) {
  return `${run.name}\n${run.rev}`;
}

/** @param {string} id @param {string} text */
function say(id, text) {
  byId(id, HTMLElement).textContent = text;
}

function openChat() {
  location.assign(chatAddress(chosen().map((run) => run.name)));
}

function untickAll() {
  ticked.clear();
  table.markTicks();
  onTick();
  byId("runs", HTMLElement).focus();
}

against.append(...COSTS.map(({ key, title }) => element("option", { value: key }, title)));
for (const node of [tokenizer, depth, named, against]) node.addEventListener("input", show);
for (const node of [column, along]) node.addEventListener("input", drawCurves);
chat.addEventListener("click", openChat);
untick.addEventListener("click", untickAll);
refresh.addEventListener("click", () => load(true));
onKeyNeeded(askedKey);
load(false);
