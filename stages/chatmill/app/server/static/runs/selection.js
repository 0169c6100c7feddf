// @ts-check
/** Filters of runs, and the texts about shown and ticked runs. */

import { pluralize } from "../shared/text_format.js";

/** @typedef {import("./requests.js").Run} Run */
/** @typedef {import("./requests.js").Curve} Curve */
/** @typedef {import("./requests.js").Point} Point */
/** @typedef {{ tokenizer: string, depth: string, named: string }} Filter "" is passed by every run */
/** @typedef {{ name: string, state: string, curve: Curve, points: Point[] }} Line a run's curve, and its points as drawn */

/** Whether a run passes a filter.
 * @param {Run} run
 * @param {Filter} filter
 */
export function passes(run, { tokenizer, depth, named }) {
  return (
    (tokenizer === "" || run.tokenizer === tokenizer) &&
    (depth === "" || String(run.depth) === depth) &&
    run.label.toLowerCase().includes(named.trim().toLowerCase())
  );
}

/** The run that was listed before: that of its revision, or of its name, where it was running and has ended meanwhile.
 * @param {Run} before
 * @param {Run[]} runs
 */
export function findAgain(before, runs) {
  return (
    runs.find((run) => run.name === before.name) ??
    runs.find((run) => run.rev === before.rev && run.kind === before.kind) ??
    runs.find((run) => before.state !== "done" && run.label === before.label)
  );
}

/** The distinct values of a metric, unsorted.
 * @param {Run[]} runs
 * @param {string} key
 */
export function valuesOf(runs, key) {
  return [...new Set(runs.map((run) => run[key]).filter((value) => value !== null))];
}

/** How many runs were listed, and when.
 * @param {import("./requests.js").Listing} listing
 */
export function summary({ runs, problem, read, complete }) {
  const time = new Date(1000 * read).toLocaleTimeString("en", { timeStyle: "short", hour12: false });
  const rest = complete ? "" : " DVC is still asked which runs wait or failed; it takes half a second for a new run.";
  if (runs.length) return `${pluralize(runs.length, "run")}, as of ${time}.${rest}`;
  if (!complete) return "Reading the runs … DVC takes half a second for each that it has not read before.";
  return problem ? "" : "There are no runs: commit the project, then run `dvc repro` or `dvc exp run`.";
}

/** A hint about what can be done with the ticked runs.
 * @param {Run[]} ticked
 */
export function selectionHint(ticked) {
  const without = ticked.find((run) => !run.model);
  if (!ticked.length) return "Tick runs to see their curves, and two of them to chat side by side.";
  const [{ name }] = ticked;
  const command = `\`chatmill page --model ${name} -o chat.html\``;
  if (!without && ticked.length === 1) return `${command} makes a page of its model.`;
  if (!without) return `${pluralize(ticked.length, "run")} ticked${ticked.length > 2 ? "; one or two can chat" : ""}.`;
  if (without.state !== "done") return `${without.name} has no model to chat with.`;
  const remedy = "`dvc pull` or `dvc exp pull` fetches it, if it was pushed";
  return `The model of ${without.name} is not on this machine: ${remedy}.`;
}

/** Whether the ticked runs can chat: one of them, or two side by side.
 * @param {Run[]} ticked
 */
export function canChat(ticked) {
  return (ticked.length === 1 || ticked.length === 2) && ticked.every((run) => run.model);
}

/** A run's curve over steps or tokens; it has no points if the curve or the batch size is missing.
 * @param {Run} run
 * @param {Curve} curve
 * @param {string} column
 * @param {string} xAxis
 * @returns {Line}
 */
export function lineOf(run, curve, column, xAxis) {
  const scale = xAxis === "tokens" ? run.batch_size : 1;
  const values = /** @type {Point[]} */ (curve[column] ?? []);
  const points = scale ? values.map(([step, value]) => /** @type {Point} */ ([step * scale, value])) : [];
  return { name: run.name, state: run.state, curve, points };
}

/** Notes on lines without points: "a, b: the training curve is missing on this machine."
 * @param {Line[]} lines
 */
export function missingCurveNotes(lines) {
  /** @type {Map<string, string[]>} */
  const names = new Map();
  for (const { name, state, curve } of lines.filter(({ points }) => !points.length)) {
    const reason = missingReason(curve, state);
    names.set(reason, [...(names.get(reason) ?? []), name]);
  }
  return [...names].map(([reason, some]) => `${some.join(", ")}: ${reason}`);
}

/** @param {Curve} curve @param {string} state */
function missingReason(curve, state) {
  if (curve.problem) return curve.problem;
  if (state === "failed") return "DVC has removed the curve of a failed run; it stays here if it was watched before.";
  if (state === "queued") return "it waits in DVC's queue.";
  if (Object.keys(curve).length) return "the training curve does not have these values.";
  return "the training curve is missing on this machine, or has no values yet.";
}
