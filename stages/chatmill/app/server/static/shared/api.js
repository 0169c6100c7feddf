// @ts-check
/** A client of the server's API: requests, errors, streamed answers, and the key that a server may ask for. */

import { button, element, sentence } from "./dom.js";

/** @typedef {{ id: string, loaded: boolean, engine?: string, device?: string, size?: number, max_model_len?: number,
 *   template?: string, tools?: string[], defaults?: Record<string, number>, about?: string | null,
 *   prompts?: string[] }} Model an entry of /v1/models */
/** @typedef {{ id: number, bytes: number[], control: string | null, logprob: number }} Candidate one of the likeliest tokens */
/** @typedef {Omit<Candidate, "logprob"> & { logprob: number | null, top?: Candidate[] }} Token */
/** @typedef {{ tokens_per_second: number | null, first_token_ms: number | null, prompt_tokens: number,
 *   completion_tokens: number, context: number, dropped_messages?: number,
 *   lost?: string }} Timings */
/** @typedef {{ kind: "text" | "call" | "output", text: string }} Part */
/** @typedef {{ delta: { content?: string, parts?: Part[] }, token_ids?: number[],
 *   finish_reason?: string | null }} Choice */
/** @typedef {{ prompt_token_ids?: number[], timings?: Timings, choices?: Choice[] }} Chunk an event of a streamed answer */

const KEY = "chatmill.key"; // in the tab's storage

/** @type {Promise<string> | null} */
let keyDialog = null; // one at a time, however many requests were refused
let key = storedKey();

/** An error of the server or the connection; `status` is 0 if there was no response, `retryAfter` is in seconds. */
export class ApiError extends Error {
  /** @param {string} message @param {number | null} retryAfter */
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The models that the server has, the default first.
 * @returns {Promise<Model[]>}
 */
export async function fetchModels() {
  return (await get("/v1/models")).data;
}

/** Have the server list the runs of its repository, whose models /v1/models contains from then on. */
export async function findRuns() {
  await get("/runs.json");
}

/** The chat of a file with which the server was started, as a line of training data.
 * @param {string} id
 */
export async function fetchChat(id) {
  return (await send(`/chats/${encodeURIComponent(id)}`, {})).text();
}

/** Each token of `ids`: its text, bytes and log probability, and the likeliest tokens at its position.
 * @param {string | null} model
 * @param {number[]} ids
 * @returns {Promise<Token[]>}
 */
export async function fetchTokens(model, ids) {
  return (await (await post("/tokens", { model, ids })).json()).tokens;
}

/** The chunks of an answer, as they arrive. Throws ApiError if the answer is incomplete.
 * @param {object} request
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Chunk>}
 */
export async function* streamChat(request, signal) {
  for await (const chunk of streamEvents("/v1/chat/completions", { ...request, stream: true }, signal)) {
    if (chunk.error) throw new ApiError(chunk.error.message);
    yield chunk;
  }
}

/** The events of a streamed answer to a request, as they arrive. Throws ApiError if the answer is incomplete.
 * @param {string} path
 * @param {object} request
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* streamEvents(path, request, signal) {
  const reader = (await post(path, request, signal)).body?.getReader(); // not every browser can iterate a stream
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = (await reader?.read().catch(rejectWithConnectionError)) ?? { done: true };
      if (done || !value) throw new ApiError("the connection ended in the middle of the answer");
      for (const data of events.push(value)) {
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader?.cancel().catch(() => {}); // fails if the connection is closed already
  }
}

/** Reads the data of server-sent events from bytes that may be split anywhere. The browser's EventSource sends neither
 * a body nor a key. */
export class EventReader {
  #decoder = new TextDecoder();
  #rest = ""; // the last line, which is incomplete
  /** @type {string[]} */
  #data = [];

  /** The data of the events that these bytes complete.
   * @param {Uint8Array} bytes
   * @returns {string[]}
   */
  push(bytes) {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a last \r may be half of \r\n
    this.#rest = lines.pop() ?? "";
    const events = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (!line && this.#data.length) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }
}

/** The JSON of a GET request. Throws ApiError.
 * @param {string} path
 */
export async function get(path) {
  return (await send(path, {})).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function send(path, options) {
  for (;;) {
    const used = key;
    const headers = used ? { ...options.headers, Authorization: `Bearer ${used}` } : options.headers;
    const response = await fetch(path, { ...options, headers }).catch(rejectWithConnectionError);
    if (response.ok) return response;
    const error = await problemOf(response);
    if (response.status !== 401 || !(key !== used || (await newKey(error.message)))) throw error;
  }
}

/** Ask the user for a key and use it in this tab; false if none was given.
 * @param {string} message
 */
async function newKey(message) {
  keyDialog ??= askForKey(message).finally(() => (keyDialog = null));
  const answer = await keyDialog;
  if (!answer) return false;
  key = answer;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    return true; // the browser stores nothing: the key lasts until the page is closed
  }
  return true;
}

function storedKey() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // the browser stores nothing
  }
}

/** Ask the user for the server's key in a modal dialog; "" if cancelled.
 * @param {string} message
 * @returns {Promise<string>}
 */
function askForKey(message) {
  const field = element("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const cancel = button("Cancel", () => dialog.close(""));
  const form = element(
    "form",
    {},
    element("h2", { id: "dialog-title" }, "This server needs an API key"),
    element("p", {}, sentence(message)),
    element("label", { htmlFor: field.id }, "Key"),
    field,
    element("p", { className: "hint" }, "It is stored until this tab is closed."),
    element("div", { className: "choices" }, cancel, element("button", { className: "first" }, "Continue")),
  );
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", (event) => (event.preventDefault(), dialog.close(field.value)));
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => (dialog.remove(), resolve(dialog.returnValue)));
  });
}

/** Turn the error of a request without a response into an ApiError, unless the request was aborted.
 * @param {Error} error
 * @returns {Promise<never>}
 */
function rejectWithConnectionError(error) {
  const message = "the server does not answer: check whether `chatmill serve` is still running";
  return Promise.reject(error.name === "AbortError" ? error : new ApiError(message));
}

/** @param {Response} response */
async function problemOf(response) {
  const text = await response.text();
  let message = text.trim();
  try {
    message = JSON.parse(text).error.message;
  } catch {
    message ||= `the server answered ${response.status} ${response.statusText}`; // something else than this server
  }
  return new ApiError(message, response.status, Number(response.headers.get("Retry-After")) || null);
}
