// @ts-check
/** The model of the page, which runs in a worker: it answers one request after another.
 *
 * A message is {call, type, …}; a reply is {call, chunk}, {call, result} or {call, error}, the last {call, done}.
 */

import { Answering, RequestError } from "./answering.js";
import { Model } from "./model.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {{ size: number, shape: import("./model.js").Shape, tensors: import("./model.js").Tensor[], tokenizer: any,
 *   template: import("./template.js").Description, stop_ids: number[], tools: string[] }} Content */
/** @typedef {{ call: number, type: "open" | "chat" | "tokens" | "stop", [name: string]: any }} Question */

/** Answer the messages of the page. */
export function serve() {
  const stopped = /** @type {Set<number>} */ (new Set());
  let queue = Promise.resolve(/** @type {Answering | null} */ (null));
  addEventListener("message", (/** @type {MessageEvent<Question>} */ { data }) => {
    if (data.type === "stop") stopped.add(data.call);
    else queue = queue.then((answering) => answer(data, answering, stopped));
  });
}

/** Answer a question; the model, which the first question opens.
 * @param {Question} question
 * @param {Answering | null} answering
 * @param {Set<number>} stopped calls that are no longer wanted
 */
async function answer(question, answering, stopped) {
  const { call, type } = question;
  const pause = async () => {
    await letMessagesIn();
    return !stopped.has(call);
  };
  try {
    if (type === "open") answering = open(question.content, question.weights, question.wasm);
    else if (!answering) throw new RequestError("the model could not be opened");
    else if (type === "tokens") postMessage({ call, result: await answering.tokens(question.ids, pause) });
    else if (!stopped.has(call)) {
      for await (const chunk of answering.answer(question.request, pause)) postMessage({ call, chunk });
    }
  } catch (error) {
    postMessage({ call, error: error instanceof Error ? error.message : String(error) });
  }
  stopped.delete(call);
  postMessage({ call, done: true });
  return answering;
}

/** Wait until the messages that have come are received; a timer would wait 4 ms. */
function letMessagesIn() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = resolve;
    port2.postMessage(null);
  }).finally(() => port1.close());
}

/** The model in the page's data, of which the larger lists are in base64.
 * @param {Content} content @param {string} weights @param {string} wasm
 */
export function open({ size, shape, tensors, tokenizer, template, stop_ids: stopIds, tools }, weights, wasm) {
  const model = new Model(shape, tensors, readWeights(weights, size), decode(wasm));
  return new Answering(model, new Tokenizer(readVocabulary(tokenizer)), template, stopIds, tools);
}

/** @param {any} content @returns {import("./tokenizer.js").Vocabulary} */
export function readVocabulary(content) {
  const data = atob(content.tokens);
  const lengths = new Uint16Array(decode(content.lengths).buffer);
  let end = 0;
  const tokens = Array.from(lengths, (length) => data.slice(end, (end += length)));
  return {
    ...content,
    tokens,
    kinds: [...decode(content.kinds)],
    scores: new Float64Array(decode(content.scores).buffer),
    merges: new Uint32Array(decode(content.merges).buffer),
  };
}

/** The bytes that page/content.py wrote as characters, of which a backslash changes the next one.
 * @param {string} text @param {number} size
 */
export function readWeights(text, size) {
  const escaped = [92, 0, 13, 60];
  const codes = [...Array(256).keys()].filter((code) => !escaped.includes(code)).concat(escaped);
  const values = new Uint8Array(256);
  codes.forEach((code, i) => (values[code] = i % 2 ? -(i + 1) / 2 : i / 2)); // 0, -1, 1, -2, … as int8
  const bytes = new Uint8Array(size);
  let place = 0;
  for (let at = 0; at < size; at += 1, place += 1) {
    const code = text.charCodeAt(place);
    bytes[at] = values[code === 92 ? text.charCodeAt((place += 1)) ^ 64 : code];
  }
  if (place !== text.length) throw new Error("the page is damaged, or its server said that it is not UTF-8");
  return bytes;
}

/** The bytes of base64.
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
function decode(text) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(text.trim());
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
