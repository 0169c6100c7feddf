// @ts-check
/** What the page says of the listed and the ticked runs, and what can be done with them. */

import { pluralize } from "../shared/dom.js";

/** @typedef {{ name: string, label: string, kind: string, rev: string, model: string | null,
 *   report: boolean, batch_size: number | null, tokenizer: string | null,
 *   depth: number | null, seed: string | null, group: string | null, differs: Record<string, string>,
 *   other_seeds: string[], [metric: string]: any }} Run and its metrics by the keys of their columns; runs of a group
 *   differ by their seed, and `other_seeds` are the revisions of those that could stand beside it in a verdict */
/** @typedef {{ runs: Run[], notes: string[], problem: string | null, read: number }} Listing */
/** @typedef {[across: number, up: number]} Point */
/** @typedef {{ problem?: string, [column: string]: any }} Curve (step, bits per byte) of each column, or its problem */
/** @typedef {{ name: string, curve: Curve, points: Point[] }} Line a run's curve, and its points as drawn */

/** The run that was listed before: that of its name, or of its revision.
 * @param {Run} before
 * @param {Run[]} runs
 */
export function findAgain(before, runs) {
  return (
    runs.find((run) => run.name === before.name) ??
    runs.find((run) => run.rev === before.rev && run.kind === before.kind)
  );
}

/** How many runs were listed, and when.
 * @param {Listing} listing
 */
export function summary({ runs, problem, read }) {
  const time = new Date(1000 * read).toLocaleTimeString("en", { timeStyle: "short", hour12: false });
  if (runs.length) return `${pluralize(runs.length, "run")}, as of ${time}.`;
  return problem ? "" : "There are no runs: commit the project, then run `dvc repro` or `dvc exp run`.";
}

/** A hint about what can be done with the ticked runs.
 * @param {Run[]} ticked
 */
export function selectionHint(ticked) {
  const without = ticked.find((run) => !run.model);
  if (!ticked.length) return "Tick runs to see their curves, and two of them to chat side by side.";
  if (!without) return `${pluralize(ticked.length, "run")} ticked${ticked.length > 2 ? "; one or two can chat" : ""}.`;
  const remedy = "`dvc pull` or `dvc exp pull` fetches it, if it was pushed";
  return `The model of ${without.name} is not on this machine: ${remedy}.`;
}

/** The URL of a chat with the ticked run, or with two side by side; null for others, and where a model is missing.
 * @param {Run[]} ticked
 */
export function chatAddress(ticked) {
  if (ticked.length < 1 || ticked.length > 2 || ticked.some((run) => !run.model)) return null;
  const [model, beside] = ticked.map(({ name }) => name);
  return `/?${new URLSearchParams({ model, ...(beside === undefined ? {} : { beside }) })}`;
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
  return { name: run.name, curve, points };
}

/** Notes on lines without points.
 * @param {Line[]} lines
 */
export function missingCurveNotes(lines) {
  const missing = lines.filter(({ points }) => !points.length);
  return missing.map(({ name, curve }) => `${name}: ${missingReason(curve)}`);
}

/** @param {Curve} curve */
function missingReason(curve) {
  if (curve.problem) return curve.problem;
  if (Object.keys(curve).length) return "the training curve does not have these values.";
  return "the training curve is missing on this machine, or has no values yet.";
}
