// @ts-check
/** Which runs are shown and ticked, and what is said of them. */

import { counted } from "../shared/words.js";

/** @typedef {import("./requests.js").Run} Run */
/** @typedef {import("./requests.js").Curve} Curve */
/** @typedef {import("./requests.js").Point} Point */
/** @typedef {{ tokenizer: string, depth: string, named: string }} Filter "" lets any pass */
/** @typedef {{ name: string, curve: Curve, points: Point[] }} Line a run's curve, and its points as they are drawn */

/** Whether a filter lets a run pass.
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

/** The different values that runs have of a figure, unsorted.
 * @param {Run[]} runs
 * @param {string} key
 */
export function valuesOf(runs, key) {
  return [...new Set(runs.map((run) => run[key]).filter((value) => value !== null))];
}

/** How many runs were found, and when.
 * @param {import("./requests.js").Listing} listing
 */
export function summary({ runs, problem, read }) {
  const time = new Date(1000 * read).toLocaleTimeString("en", { timeStyle: "short", hour12: false });
  if (runs.length) return `${counted(runs.length, "run")}, as of ${time}.`;
  return problem ? "" : "There are no runs: commit the project, then `dvc repro` or `dvc exp run` makes one.";
}

/** What can be done with the ticked runs.
 * @param {Run[]} ticked
 */
export function aboutTicked(ticked) {
  const without = ticked.find((run) => !run.model);
  if (!ticked.length) return "Tick runs to see their curves, and two of them to chat side by side.";
  if (!without) return `${counted(ticked.length, "run")} ticked${ticked.length > 2 ? "; one or two can chat" : ""}.`;
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

/** A run's curve along steps or tokens; without points where it lacks what they are made of.
 * @param {Run} run
 * @param {Curve} curve
 * @param {string} column
 * @param {string} along
 * @returns {Line}
 */
export function lineOf(run, curve, column, along) {
  const scale = along === "tokens" ? run.batch_size : 1;
  const values = /** @type {Point[]} */ (curve[column] ?? []);
  const points = scale ? values.map(([step, value]) => /** @type {Point} */ ([step * scale, value])) : [];
  return { name: run.name, curve, points };
}

/** Why lines without points have none: "a, b: no training curve is at hand."
 * @param {Line[]} lines
 */
export function lacks(lines) {
  /** @type {Map<string, string[]>} */
  const names = new Map();
  for (const { name, curve } of lines.filter(({ points }) => !points.length)) {
    const lack = lackOf(curve);
    names.set(lack, [...(names.get(lack) ?? []), name]);
  }
  return [...names].map(([lack, some]) => `${some.join(", ")}: ${lack}`);
}

/** @param {Curve} curve */
function lackOf(curve) {
  if (curve.problem) return curve.problem;
  return Object.keys(curve).length ? "nothing of this kind in the curve." : "no training curve is at hand.";
}
