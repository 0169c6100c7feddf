/** The runs that the server knows, their curves and where their reports are. */

import { askedKey } from "./dialogs.js";

const KEY = "chatmill.key"; // as the chat page keeps it

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

async function get(address) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await fetch(address, key ? { headers: { Authorization: `Bearer ${key}` } } : {}).catch(() => {
      throw new Error("the server does not answer: see whether `chatmill serve` is still running");
    });
    if (response.ok) return response.json();
    const { error } = await response.json().catch(() => ({ error: { message: `it answered ${response.status}` } }));
    const given = response.status === 401 ? await askedKey(error.message) : null;
    if (!given) throw new Error(error.message);
    sessionStorage.setItem(KEY, given);
  }
}
