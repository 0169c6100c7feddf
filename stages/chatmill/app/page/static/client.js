// @ts-check
/** The model in this file, in place of the server's API: the same functions as server/static/shared/api.js. */

import { Backend } from "./backend.js";
import { DEFAULTS } from "./sampler.js";
import { MAX_TOKENS } from "./answering.js";

/** @typedef {import("../../server/static/shared/api.js").Chunk} Chunk */
/** @typedef {import("../../server/static/shared/api.js").Model} Model */
/** @typedef {import("../../server/static/shared/api.js").Token} Token */

/** An error that is shown to the user. */
export class ApiError extends Error {
  status = 0;
  code = null;
  param = null;
  retryAfter = null;
}

const content = JSON.parse(textOf("content"));
const [send, engine] = connect();
/** @type {Map<number, (reply: any) => void>} */
const listeners = new Map();
let calls = 0;
const opened = result({ type: "open", content, weights: textOf("weights").trim(), wasm: textOf("kernel").trim() });
opened.then(() => document.documentElement.setAttribute("data-ready", String(performance.now())), () => {});
document.getElementById("weights")?.remove(); // the memory of the text

export function onKeyNeeded() {}

/** @returns {Promise<Model[]>} */
export async function fetchModels() {
  await opened;
  const { name, size, shape, template, tools } = content;
  const defaults = { ...DEFAULTS, max_tokens: MAX_TOKENS };
  const facts = { engine, size, max_model_len: shape.context, template: template.name, tools, defaults };
  return [{ id: name, loaded: true, ...facts }];
}

export async function findRuns() {}

/** @returns {Promise<string>} */
export async function fetchChat() {
  throw new ApiError("only `chatmill serve --load` has it");
}

/** @param {string | null} _ @param {number[]} ids @returns {Promise<Token[]>} */
export function fetchTokens(_, ids) {
  return result({ type: "tokens", ids });
}

/** The chunks of an answer.
 * @param {object} request @param {AbortSignal} signal
 * @returns {AsyncGenerator<Chunk>}
 */
export async function* streamChat(request, signal) {
  const { call, next } = start({ type: "chat", request });
  const stop = () => send({ call, type: "stop" });
  signal.addEventListener("abort", stop);
  try {
    for (let reply = await next(); !reply.done; reply = await next()) {
      if (reply.error) throw new ApiError(reply.error);
      yield reply.chunk;
    }
    signal.throwIfAborted();
  } finally {
    stop();
    listeners.delete(call);
  }
}

/** @param {object} question */
async function result(question) {
  const { call, next } = start(question);
  let found = null;
  for (let reply = await next(); !reply.done; reply = await next()) {
    if (reply.error) throw new ApiError(reply.error);
    found = reply.result;
  }
  listeners.delete(call);
  return found;
}

/** Send a question; `next` gives its replies, one after another.
 * @param {object} question
 */
function start(question) {
  const call = (calls += 1);
  /** @type {any[]} */
  const replies = [];
  let wake = () => {};
  listeners.set(call, (reply) => {
    replies.push(reply);
    wake();
  });
  send({ ...question, call });
  const next = async () => {
    while (!replies.length) await new Promise((resolve) => (wake = () => resolve(null)));
    return replies.shift();
  };
  return { call, next };
}

/** A function that sends a question to the model, which runs in a worker if the browser allows it; and where it runs.
 * @returns {[(question: any) => void, string]}
 */
function connect() {
  const receive = (/** @type {any} */ reply) => listeners.get(reply.call)?.(reply);
  try {
    const address = URL.createObjectURL(new Blob([textOf("program")], { type: "text/javascript" }));
    const worker = new Worker(address);
    let error = "";
    worker.onmessage = ({ data }) => receive(data);
    worker.onerror = ({ message }) => {
      error = `the model has stopped: ${message || "the browser does not run its worker"}: reload the page`;
      for (const call of [...listeners.keys()]) receive({ call, error });
    };
    return [(question) => (error ? receive({ ...question, error }) : worker.postMessage(question)), "this page"];
  } catch {
    const backend = new Backend((reply) => queueMicrotask(() => receive(reply)));
    return [(question) => backend.receive(question), "this page, beside its display"];
  }
}

/** @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}
