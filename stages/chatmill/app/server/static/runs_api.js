/** The runs that the server knows, their curves and where their reports are. */

import { get } from "./api.js";

/** All runs, and what is to be said of them; `refresh` has the server look for them anew. */
export function fetchRuns(refresh = false) {
  return get(refresh ? "/runs.json?refresh=1" : "/runs.json");
}

/** The training curve of a run: (step, bits per byte) of each column. */
export function fetchCurve(name) {
  return get(`${path(name)}/curve.json`);
}

/** Where the report of a run is; the ticket is the listing's. */
export function reportAddress(name, ticket) {
  return `${path(name)}/report?ticket=${encodeURIComponent(ticket)}`;
}

/** Where one model chats, or two of them side by side. */
export function chatAddress(model, beside) {
  const names = new URLSearchParams({ model, ...(beside === undefined ? {} : { beside }) });
  return `/?${names}`;
}

function path(name) {
  return `/runs/${encodeURIComponent(name)}`;
}
