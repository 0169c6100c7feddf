// @ts-check
/** The model in this file, in place of the server's API: the same functions as server/static/shared/api.js. */

import { MAX_TOKENS } from "./answering.js";
import { DEFAULTS } from "./sampler.js";

/** @typedef {import("../../server/static/shared/api.js").Chunk} Chunk */
/** @typedef {import("../../server/static/shared/api.js").Model} Model */
/** @typedef {import("../../server/static/shared/api.js").Token} Token */

const SERVED = [".page-link", "label[for=beside]", "#beside"]; // what the chat page has only with a server

/** An error that is shown to the user. */
export class ApiError extends Error {
  retryAfter = null;
}

for (const selector of SERVED) document.querySelector(selector)?.setAttribute("hidden", "");
document.querySelector(".brand")?.removeAttribute("href");
const reset = document.getElementById("reset");
if (reset) reset.textContent = "Reset to the defaults";
const content = JSON.parse(textOf("content"));
const program = new Blob([textOf("program")], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(program));
/** @type {Map<number, (reply: any) => void>} */
const listeners = new Map();
let calls = 0;
let stopped = ""; // why the worker has stopped
worker.onmessage = ({ data }) => listeners.get(data.call)?.(data);
worker.onerror = ({ message }) => {
  stopped = `the model has stopped: ${message || "the browser does not run its worker"}: reload the page`;
  for (const listener of listeners.values()) listener({ error: stopped });
};
const opened = result({ type: "open", content, weights: textOf("weights"), wasm: textOf("kernel").trim() });
opened.then(() => document.documentElement.setAttribute("data-ready", String(performance.now())), () => {});
document.getElementById("weights")?.remove(); // the memory of the text

/** @returns {Promise<Model[]>} */
export async function fetchModels() {
  await opened;
  const { name, size, shape, template, tools, about, prompts } = content;
  const defaults = { ...DEFAULTS, max_tokens: MAX_TOKENS };
  const facts = { engine: "this page", size, max_model_len: shape.context, template: template.name, tools, defaults };
  return [{ id: name, loaded: true, ...facts, about, prompts }];
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
  for await (const { chunk } of replies({ type: "chat", request }, signal)) yield chunk;
  signal.throwIfAborted();
}

/** @param {object} question */
async function result(question) {
  let found = null;
  for await (const reply of replies(question)) found = reply.result;
  return found;
}

/** Send a question; its replies, one after another. Throws ApiError.
 * @param {object} question
 * @param {AbortSignal} [signal]
 */
async function* replies(question, signal) {
  const call = (calls += 1);
  const waiting = /** @type {any[]} */ (stopped ? [{ error: stopped }] : []);
  let wake = () => {};
  const stop = () => worker.postMessage({ call, type: "stop" });
  listeners.set(call, (reply) => {
    waiting.push(reply);
    wake();
  });
  signal?.addEventListener("abort", stop);
  worker.postMessage({ ...question, call });
  try {
    for (;;) {
      while (!waiting.length) await new Promise((resolve) => (wake = () => resolve(null)));
      const reply = waiting.shift();
      if (reply.error) throw new ApiError(reply.error);
      if (reply.done) return;
      yield reply;
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    listeners.delete(call);
  }
}

/** @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}
