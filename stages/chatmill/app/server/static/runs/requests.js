// @ts-check
/** Requests for the runs and their curves, and the URLs of reports and chats. */

import { get, streamEvents } from "../shared/api.js";

/** @typedef {{ name: string, label: string, kind: string, rev: string, state: string, model: string | null,
 *   report: boolean, problem: string | null, batch_size: number | null, tokenizer: string | null,
 *   depth: number | null, seed: string | null, group: string | null, differs: Record<string, string>,
 *   other_seeds: string[], [metric: string]: any }} Run and its metrics by the keys of their columns; runs of a group
 *   differ by their seed, and `other_seeds` are the revisions of those that could stand beside it in a verdict */
/** @typedef {{ runs: Run[], notes: string[], problem: string | null, read: number,
 *   complete: boolean }} Listing an early one is not complete */
/** @typedef {{ measured?: string, problem?: string, sentences?: string[], heads?: string[], note?: string,
 *   number?: string }} VerdictEvent a run that was measured, or the verdict, or why there is none */
/** @typedef {[across: number, up: number]} Point */
/** @typedef {{ problem?: string, [column: string]: any }} Curve (step, bits per byte) of each column, or its problem */

/** The listing of all runs; `refresh` makes the server list them again. An early one comes in a second.
 * @param {{ refresh?: boolean, early?: boolean }} options
 * @returns {Promise<Listing>}
 */
export function fetchRuns({ refresh = false, early = false } = {}) {
  return get(`/runs.json?${new URLSearchParams({ ...(refresh && { refresh: "1" }), ...(early && { early: "1" }) })}`);
}

/** Have the server compare sides, each of one run or of several that differ by their seed.
 * @param {string[][]} sides
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<VerdictEvent>}
 */
export function streamVerdict(sides, signal) {
  return streamEvents("/runs/verdict", { sides }, signal);
}

/** The URL of a verdict's page.
 * @param {string} number
 */
export function verdictAddress(number) {
  return `/runs/verdicts/${number}/report`;
}

/** The training curve of a run.
 * @param {string} name
 * @returns {Promise<Curve>}
 */
export function fetchCurve(name) {
  return get(`${path(name)}/curve.json`);
}

/** The training curve of a run if it is another one than `before`; null if not, or if the server does not answer.
 * @param {string} name
 * @param {Curve} before
 * @returns {Promise<Curve | null>}
 */
export async function fetchChangedCurve(name, before) {
  const curve = await fetchCurve(name).catch(() => null);
  return JSON.stringify(curve) === JSON.stringify(before) ? null : curve;
}

/** The URL of a run's report.
 * @param {string} name
 */
export function reportAddress(name) {
  return `${path(name)}/report`;
}

/** The URL of a chat with one model, or with two side by side.
 * @param {string[]} names
 */
export function chatAddress([model, beside]) {
  const names = new URLSearchParams({ model, ...(beside === undefined ? {} : { beside }) });
  return `/?${names}`;
}

/** @param {string} name */
function path(name) {
  return `/runs/${encodeURIComponent(name)}`;
}
