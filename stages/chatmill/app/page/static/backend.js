// @ts-check
/** The model of the page, in a worker or beside the page: it answers one request after another.
 *
 * A message is {call, type, …}; a reply is {call, chunk}, {call, result} or {call, error}, the last {call, done}.
 */

import { Answering, RequestError } from "./answering.js";
import { Model } from "./model.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {{ shape: import("./model.js").Shape, tensors: import("./model.js").Tensor[], tokenizer: any,
 *   template: import("./template.js").Description, stop_ids: number[], tools: string[] }} Content */
/** @typedef {{ call: number, type: "open" | "chat" | "tokens" | "stop", [name: string]: any }} Question */
/** @typedef {(reply: object) => void} Post */

export class Backend {
  /** @type {Answering | null} */
  #answering = null;
  /** @type {Set<number>} */
  #stopped = new Set();
  #queue = Promise.resolve();
  #channel = new MessageChannel();
  #turns = /** @type {((value: unknown) => void)[]} */ ([]);

  /** @param {Post} post */
  constructor(post) {
    this.post = post;
    this.#channel.port1.onmessage = () => this.#turns.shift()?.(null);
  }

  /** @param {Question} question */
  receive(question) {
    if (question.type === "stop") this.#stopped.add(question.call);
    else this.#queue = this.#queue.then(() => this.#answer(question));
  }

  /** @param {Question} question */
  async #answer(question) {
    const { call } = question;
    try {
      if (question.type === "open") this.#answering = open(question.content, question.weights, question.wasm);
      else if (!this.#answering) throw new RequestError("the model could not be opened");
      else if (question.type === "tokens") {
        this.post({ call, result: await this.#answering.tokens(question.ids, () => this.#pause(call)) });
      } else if (!this.#stopped.has(call)) {
        const chunks = this.#answering.answer(question.request, () => this.#pause(call));
        for await (const chunk of chunks) this.post({ call, chunk });
      }
    } catch (error) {
      this.post({ call, error: error instanceof Error ? error.message : String(error) });
    }
    this.#stopped.delete(call);
    this.post({ call, done: true });
  }

  /** Let other messages in; false if the call was stopped.
   * @param {number} call
   */
  async #pause(call) {
    await new Promise((resolve) => {
      this.#turns.push(resolve);
      this.#channel.port2.postMessage(null);
    });
    return !this.#stopped.has(call);
  }
}

/** The model in the page's data, of which weights and the larger lists are in base64.
 * @param {Content} content @param {string} weights @param {string | null} wasm
 */
export function open({ shape, tensors, tokenizer, template, stop_ids: stopIds, tools }, weights, wasm) {
  const model = new Model(shape, tensors, decode(weights), wasm ? decode(wasm) : null);
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

/** The bytes of base64.
 * @param {string} text
 */
export function decode(text) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(text.trim());
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
