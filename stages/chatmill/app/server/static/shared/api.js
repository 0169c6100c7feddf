// @ts-check
/** The server's API: requests, its errors, and answers as they stream in. */

import { EventReader } from "./events.js";

/** @typedef {{ id: string, loaded: boolean, engine?: string, device?: string, size?: number, max_model_len?: number,
 *   template?: string, tools?: string[], defaults?: Record<string, number> }} Model what the server tells of one */
/** @typedef {{ id: number, bytes: number[], control: string | null, logprob: number }} Candidate a likely token */
/** @typedef {Omit<Candidate, "logprob"> & { logprob: number | null, top?: Candidate[] }} Token */
/** @typedef {{ tokens_per_second: number | null, first_token_ms: number | null, prompt_tokens: number,
 *   completion_tokens: number, context: number, dropped_messages?: number }} Timings */
/** @typedef {{ kind: "text" | "call" | "output", text: string }} Part */
/** @typedef {{ delta: { content?: string, parts?: Part[] }, token_ids?: number[],
 *   finish_reason?: string | null }} Choice */
/** @typedef {{ prompt_token_ids?: number[], timings?: Timings, choices?: Choice[] }} Chunk a piece of an answer */
/** @typedef {{ message: string, status?: number, code?: string | null, param?: string | null,
 *   retryAfter?: number | null }} Problem */

const JSON_HEADERS = { "Content-Type": "application/json" };
const KEY = "chatmill.key";

/** @type {(message: string) => Promise<string | null>} */
let askForKey = async () => null;
/** @type {Promise<string | null> | null} */
let asking = null; // one question at a time, however many requests were refused
let key = storedKey();

/** What the server, or the way to it, says went wrong; `status` is 0 where no answer came. */
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

/** Have a function ask for the key where the server wants one: it is given the server's words; null is no key.
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

/** Have the server look for the runs of its repository, whose models it lists from then on. */
export async function findRuns() {
  await get("/runs.json");
}

/** Each token of `ids`: its text, bytes and probability, and the likeliest in its place.
 * @param {string | null} model
 * @param {number[]} ids
 * @returns {Promise<Token[]>}
 */
export async function fetchTokens(model, ids) {
  return (await (await post("/tokens", { model, ids })).json()).tokens;
}

/** The chunks of an answer, as they come. Throws ApiError where it breaks off.
 * @param {object} request
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Chunk>}
 */
export async function* streamChat(request, signal) {
  const response = await post("/v1/chat/completions", { ...request, stream: true }, signal);
  const events = new EventReader();
  for await (const bytes of received(response.body)) {
    for (const data of events.push(bytes)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message, chunk.error);
      yield chunk;
    }
  }
  throw new ApiError("the connection ended in the middle of the answer");
}

/** The bytes of a body. It is read by hand because not every browser iterates a stream.
 * @param {ReadableStream<Uint8Array> | null} body
 */
async function* received(body) {
  if (!body) return;
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => Promise.reject(gone(error)));
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // of a connection that is broken already
  }
}

/** What the server answers at a path. Throws ApiError.
 * @param {string} path
 */
export async function get(path) {
  return (await send(path, {})).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
function post(path, body, signal) {
  return send(path, { method: "POST", headers: JSON_HEADERS, body: JSON.stringify(body), signal });
}

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function send(path, options) {
  for (;;) {
    const used = key;
    const headers = used ? { ...options.headers, Authorization: `Bearer ${used}` } : options.headers;
    const response = await fetch(path, { ...options, headers }).catch((error) => Promise.reject(gone(error)));
    if (response.ok) return response;
    const error = await problemOf(response);
    if (response.status !== 401 || !(key !== used || (await newKey(error.message)))) throw error;
  }
}

/** Ask for a key and use it; whether one was given.
 * @param {string} message
 */
async function newKey(message) {
  asking ??= askForKey(message).finally(() => (asking = null));
  const answer = await asking;
  if (!answer) return false;
  key = answer;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    return true; // it lasts as long as the page
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

/** The error of a request that got no answer; one that was stopped stays what it is.
 * @param {Error} error
 */
function gone(error) {
  if (error.name === "AbortError") return error;
  return new ApiError("the server does not answer: see whether `chatmill serve` is still running");
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
