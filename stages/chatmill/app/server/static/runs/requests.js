// @ts-check
/** The runs that the server knows, their curves and where their reports are. */

import { get } from "../shared/api.js";

/** @typedef {{ name: string, label: string, kind: string, rev: string, state: string, model: string | null,
 *   report: boolean, problem: string | null, batch_size: number | null, tokenizer: string | null,
 *   depth: number | null, [figure: string]: any }} Run and its figures by the keys of their columns */
/** @typedef {{ runs: Run[], ticket: string, notes: string[], problem: string | null, read: number }} Listing */
/** @typedef {[across: number, up: number]} Point */
/** @typedef {{ problem?: string, [column: string]: any }} Curve (step, bits per byte) of each column, or its problem */

/** All runs, and what is to be said of them; `refresh` has the server look for them anew.
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

/** Where the report of a run is; the ticket is the listing's.
 * @param {string} name
 * @param {string} ticket
 */
export function reportAddress(name, ticket) {
  return `${path(name)}/report?ticket=${encodeURIComponent(ticket)}`;
}

/** Where one model chats, or two of them side by side.
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
