// @ts-check
/** Requests for the runs and their curves, and the URLs of reports and chats. */

import { get } from "../shared/api.js";

/** @typedef {{ name: string, label: string, kind: string, rev: string, state: string, model: string | null,
 *   report: boolean, problem: string | null, batch_size: number | null, tokenizer: string | null,
 *   depth: number | null, [metric: string]: any }} Run and its metrics by the keys of their columns */
/** @typedef {{ runs: Run[], ticket: string, notes: string[], problem: string | null, read: number }} Listing */
/** @typedef {[across: number, up: number]} Point */
/** @typedef {{ problem?: string, [column: string]: any }} Curve (step, bits per byte) of each column, or its problem */

/** The listing of all runs; `refresh` makes the server list them again.
 * @returns {Promise<Listing>}
 */
export function fetchRuns(refresh = false) {
  return get(refresh ? "/runs.json?refresh=1" : "/runs.json");
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

/** The URL of a run's report; the ticket is in the listing.
 * @param {string} name
 * @param {string} ticket
 */
export function reportAddress(name, ticket) {
  return `${path(name)}/report?ticket=${encodeURIComponent(ticket)}`;
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
