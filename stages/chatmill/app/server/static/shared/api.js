// @ts-check
/** A client of the server's API: requests, errors, and streamed answers. */

import { EventReader } from "./events.js";

/** @typedef {{ id: string, loaded: boolean, engine?: string, device?: string, size?: number, max_model_len?: number,
 *   template?: string, tools?: string[], defaults?: Record<string, number> }} Model an entry of /v1/models */
/** @typedef {{ id: number, bytes: number[], control: string | null, logprob: number }} Candidate one of the likeliest tokens */
/** @typedef {Omit<Candidate, "logprob"> & { logprob: number | null, top?: Candidate[] }} Token */
/** @typedef {{ tokens_per_second: number | null, first_token_ms: number | null, prompt_tokens: number,
 *   completion_tokens: number, context: number, dropped_messages?: number }} Timings */
/** @typedef {{ kind: "text" | "call" | "output", text: string }} Part */
/** @typedef {{ delta: { content?: string, parts?: Part[] }, token_ids?: number[],
 *   finish_reason?: string | null }} Choice */
/** @typedef {{ prompt_token_ids?: number[], timings?: Timings, choices?: Choice[] }} Chunk an event of a streamed answer */
/** @typedef {{ message: string, status?: number, code?: string | null, param?: string | null,
 *   retryAfter?: number | null }} Problem */

const JSON_HEADERS = { "Content-Type": "application/json" };
const KEY = "chatmill.key";

/** @type {(message: string) => Promise<string | null>} */
let askForKey = async () => null;
/** @type {Promise<string | null> | null} */
let pendingKeyPrompt = null; // one prompt at a time, however many requests were refused
let key = storedKey();

/** An error of the server or the connection; `status` is 0 if there was no response. */
export class ApiError extends Error {
  /** @param {string} message @param {Omit<Problem, "message">} details */
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

/** Set the function that asks the user for the API key. It gets the server's message, and null from it means no key.
 * @param {(message: string) => Promise<string | null>} ask
 */
export function onKeyNeeded(ask) {
  askForKey = ask;
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
    if (chunk.error) throw new ApiError(chunk.error.message, chunk.error);
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
  const response = await post(path, request, signal);
  const events = new EventReader();
  for await (const bytes of readBytes(response.body)) {
    for (const data of events.push(bytes)) {
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
  throw new ApiError("the connection ended in the middle of the answer");
}

/** The bytes of a body, read by a reader because not every browser can iterate a stream.
 * @param {ReadableStream<Uint8Array> | null} body
 */
async function* readBytes(body) {
  if (!body) return;
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(rejectWithConnectionError);
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // fails if the connection is closed already
  }
}

/** The JSON of a GET request. Throws ApiError.
 * @param {string} path
 */
export async function get(path) {
  return (await send(path, {})).json();
}

/** The response to a POST request. Throws ApiError.
 * @param {string} path @param {object} body @param {AbortSignal} [signal]
 */
export function post(path, body, signal) {
  return send(path, { method: "POST", headers: JSON_HEADERS, body: JSON.stringify(body), signal });
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

/** Ask the user for a key and use it; false if none was given.
 * @param {string} message
 */
async function newKey(message) {
  pendingKeyPrompt ??= askForKey(message).finally(() => (pendingKeyPrompt = null));
  const answer = await pendingKeyPrompt;
  if (!answer) return false;
  key = answer;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    return true; // without storage, the key lasts until the page is closed
  }
  return true;
}

function storedKey() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
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
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  const text = await response.text();
  /** @type {Problem | undefined} */
  let problem;
  try {
    problem = JSON.parse(text).error;
  } catch {
    problem = { message: text.trim() };
  }
  const message = problem?.message || `the server answered ${response.status} ${response.statusText}`;
  return new ApiError(message, { ...problem, status: response.status, retryAfter });
}
