/** The page of runs: what is shown of them, what is ticked, and what is done with those. */

import { onKeyNeeded } from "./api.js";
import { askedKey } from "./dialogs.js";
import { counted, element } from "./dom.js";
import { chatAddress, fetchCurve, fetchRuns } from "./runs_api.js";
import { curvesFigure, MOST } from "./runs_curves.js";
import { COSTS, kindsOf, scatterFigure } from "./runs_scatter.js";
import { RunsTable } from "./runs_table.js";

const ALL = "";
const WORKSPACE = "workspace";
const [tokenizer, depth, named, column, along, against, chat, untick, refresh] = [
  "tokenizer", "depth", "named", "column", "along", "against", "chat", "untick", "refresh",
].map((id) => document.getElementById(id));
const ticked = new Set();
const curves = new Map(); // by name and revision: a promise of the curve, or of the problem with it
const table = new RunsTable(document.getElementById("runs"), ticked, onTick);
let runs = [];
let ticket = "";

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
    tell(error.message);
  }
  refresh.disabled = false;
  forgetWhatIsGone();
  offer(tokenizer, valuesOf("tokenizer").sort());
  offer(depth, valuesOf("depth").sort((one, other) => one - other));
  show();
  onTick();
}

function summary({ runs: found, problem, read }) {
  const time = new Date(1000 * read).toLocaleTimeString("en", { timeStyle: "short", hour12: false });
  if (found.length) return `${counted(found.length, "run")}, as of ${time}.`;
  return problem ? "" : "There are no runs: commit the project, then `dvc repro` or `dvc exp run` makes one.";
}

function tell(problem) {
  const node = document.getElementById("problem");
  node.hidden = !problem;
  node.textContent = problem ?? "";
}

function forgetWhatIsGone() {
  const names = new Set(runs.map((run) => run.name));
  for (const name of ticked) if (!names.has(name)) ticked.delete(name);
  for (const key of curves.keys()) if (key.endsWith(`\n${WORKSPACE}`)) curves.delete(key); // it may have changed
}

function valuesOf(key) {
  return [...new Set(runs.map((run) => run[key]).filter((value) => value !== null))];
}

/** The choices of a select; what was chosen stays, where it is still there. */
function offer(select, values) {
  const chosen = select.value;
  const options = values.map((value) => element("option", { value: String(value) }, String(value)));
  select.replaceChildren(element("option", { value: ALL }, "any"), ...options);
  select.value = values.map(String).includes(chosen) ? chosen : ALL;
}

function isShown(run) {
  return (
    (tokenizer.value === ALL || run.tokenizer === tokenizer.value) &&
    (depth.value === ALL || String(run.depth) === depth.value) &&
    run.label.toLowerCase().includes(named.value.trim().toLowerCase())
  );
}

function show() {
  const found = runs.filter(isShown);
  table.show(found, ticket);
  const none = runs.length && !found.length;
  say("ticked", none ? "No run fits these filters." : ticks());
  const cost = COSTS.find(({ key }) => key === against.value);
  document.getElementById("scatter").replaceChildren(scatterFigure(found, cost, kindsOf(runs)));
}

function chosen() {
  return [...ticked].map((name) => runs.find((run) => run.name === name));
}

function onTick() {
  const models = chosen().filter((run) => run.model);
  untick.disabled = !ticked.size;
  chat.disabled = !(ticked.size === models.length && (ticked.size === 1 || ticked.size === 2));
  chat.textContent = ticked.size === 1 ? "Chat with it" : "Chat side by side";
  say("ticked", ticks());
  drawCurves();
}

function ticks() {
  const without = chosen().find((run) => !run.model);
  if (!ticked.size) return "Tick runs to see their curves, and two of them to chat side by side.";
  if (!without) return `${counted(ticked.size, "run")} ticked${ticked.size > 2 ? "; one or two can chat" : ""}.`;
  if (without.state !== "done") return `${without.name} has no model to chat with.`;
  const remedy = "`dvc pull` or `dvc exp pull` fetches it, if it was pushed";
  return `The model of ${without.name} is not on this machine: ${remedy}.`;
}

async function drawCurves() {
  const node = document.getElementById("curves");
  const asked = chosen();
  const found = await Promise.all(asked.slice(0, MOST).map(curveOf));
  if (asked.map(keyOf).join() !== chosen().map(keyOf).join()) return; // another tick came meanwhile
  const lines = found.map((curve, index) => lineOf(asked[index], curve));
  const lacks = Map.groupBy(lines.filter(({ points }) => !points.length), ({ curve }) => lackOf(curve));
  const notes = [...lacks].map(([lack, without]) => `${without.map(({ name }) => name).join(", ")}: ${lack}`);
  if (asked.length > MOST) notes.push(`The first ${MOST} of ${asked.length} are drawn: more cannot be told apart.`);
  if (!asked.length) notes.push("None is ticked.");
  const drawn = lines.filter(({ points }) => points.length);
  const figure = drawn.length ? [curvesFigure(drawn, along.value)] : [];
  node.replaceChildren(...figure, ...notes.map((note) => element("p", { className: "hint" }, note)));
}

function curveOf(run) {
  const key = keyOf(run);
  if (!curves.has(key)) curves.set(key, fetchCurve(run.name).catch((error) => ({ problem: error.message })));
  return curves.get(key);
}

function keyOf(run) {
  return `${run.name}\n${run.rev}`;
}

/** Why a curve has no points. */
function lackOf(curve) {
  if (curve.problem) return curve.problem;
  return Object.keys(curve).length ? "nothing of this kind in the curve." : "no training curve is at hand.";
}

/** A run's curve, and its points as they are to be drawn. */
function lineOf(run, curve) {
  const scale = along.value === "tokens" ? run.batch_size : 1;
  const points = scale ? (curve[column.value] ?? []).map(([step, value]) => [step * scale, value]) : [];
  return { name: run.name, curve, points };
}

function say(id, text) {
  document.getElementById(id).textContent = text;
}

function openChat() {
  location.assign(chatAddress(...chosen().map((run) => run.name)));
}

function untickAll() {
  ticked.clear();
  table.markTicks();
  onTick();
  document.getElementById("runs").focus();
}

against.append(...COSTS.map(({ key, title }) => element("option", { value: key }, title)));
for (const node of [tokenizer, depth, named, against]) node.addEventListener("input", show);
for (const node of [column, along]) node.addEventListener("input", drawCurves);
chat.addEventListener("click", openChat);
untick.addEventListener("click", untickAll);
refresh.addEventListener("click", () => load(true));
onKeyNeeded(askedKey);
load(false);
