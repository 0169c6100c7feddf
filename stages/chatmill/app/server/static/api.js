/** The server's API: requests, its errors, and answers as they stream in. */

const JSON_HEADERS = { "Content-Type": "application/json" };
const KEY = "chatmill.key";

let askForKey = async () => null;
let asking = null; // one question at a time, however many requests were refused
let key = keptKey();

/** What the server, or the way to it, says went wrong; `status` is 0 where no answer came. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, code, param, retryAfter });
  }
}

/** Have a function ask for the key where the server wants one: it is given the server's words; null is no key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** The models that the server has, the default first. */
export async function fetchModels() {
  return (await get("/v1/models")).data;
}

/** Have the server look for the runs of its repository, whose models it lists from then on. */
export async function findRuns() {
  await get("/runs.json");
}

/** Each token of `ids`: its text, bytes and probability, and the likeliest in its place. */
export async function fetchTokens(model, ids) {
  return (await (await post("/tokens", { model, ids })).json()).tokens;
}

/** The chunks of an answer, as they come. Raises ApiError where it breaks off. */
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

/** The data of server-sent events, from bytes cut anywhere. */
export class EventReader {
  #decoder = new TextDecoder();
  #rest = ""; // of the last line, whose end has not come
  #data = [];

  /** The data of the events that these bytes complete. */
  push(bytes) {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a last \r may be half of \r\n
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (!line && this.#data.length) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }
}

async function* received(body) {
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

/** What the server tells at a path. Raises ApiError. */
export async function get(path) {
  return (await send(path, {})).json();
}

function post(path, body, signal) {
  return send(path, { method: "POST", headers: JSON_HEADERS, body: JSON.stringify(body), signal });
}

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

function keptKey() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** The error of a request that got no answer; one that was stopped stays what it is. */
function gone(error) {
  if (error.name === "AbortError") return error;
  return new ApiError("the server does not answer: see whether `chatmill serve` is still running");
}

async function problemOf(response) {
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  const text = await response.text();
  let problem = null;
  try {
    problem = JSON.parse(text).error;
  } catch {
    problem = { message: text.trim() };
  }
  const message = problem?.message || `the server answered ${response.status} ${response.statusText}`;
  return new ApiError(message, { ...problem, status: response.status, retryAfter });
}
