// @ts-check
/** Answers to the requests of the chat page, in the chunks of the server's API. */

import { calculate } from "./calculator.js";
import { Detokenizer } from "./detokenizer.js";
import { DEFAULTS, Sampler } from "./sampler.js";
import { declareTools, outputSegments, promptSegments, unescape } from "./template.js";

/** @typedef {import("../../server/static/shared/api.js").Chunk} Chunk */
/** @typedef {import("../../server/static/shared/api.js").Token} Token */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */
/** @typedef {import("./template.js").Description} Description */
/** @typedef {import("./template.js").Message} Message */
/** @typedef {{ role: string, content: string | null, tool_calls?: any[] }} RequestMessage */
/** @typedef {{ messages: RequestMessage[], max_tokens?: number, stop?: string[],
 *   continue_final_message?: boolean, [name: string]: unknown }} Request */
/** @typedef {import("./template.js").Part} Part */
/** @typedef {() => Promise<boolean>} Pause gives the browser its turn, and tells whether the answer is still wanted */
/** @typedef {{ start: number, end: number }} Tool the ids around a call */

export const MAX_TOKENS = 256; // of an answer, if a request does not say
const TOOL_TOKENS = ["<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>"];
const FLUSH = 20; // milliseconds between two chunks, after which the browser gets its turn
const TOP = 5; // the likeliest tokens that are listed for each position

/** An error of the user. */
export class RequestError extends Error {}

export class Answering {
  /** @type {number[]} */
  #ids = []; // read by the model; its cache holds them
  #chosen = -1; // the latest id of the model
  #paused = 0;

  /** @param {Model} model @param {Tokenizer} tokenizer @param {Description} template @param {number[]} stopIds
   * @param {string[]} tools
   */
  constructor(model, tokenizer, template, stopIds, tools) {
    this.model = model;
    this.tokenizer = tokenizer;
    this.template = template;
    const { special, isText } = tokenizer;
    const toolIds = template.escapes ? TOOL_TOKENS.flatMap((name) => special.get(name) ?? []) : [];
    /** @type {Tool | null} */
    this.tool = toolIds.length === TOOL_TOKENS.length ? { start: toolIds[0], end: toolIds[1] } : null;
    this.tools = this.tool ? tools : [];
    const ends = [...stopIds, special.get(template.end_token) ?? -1];
    this.stopIds = new Set(ends.filter((id) => id >= 0 && id < isText.length && id !== this.tool?.end));
    this.allowed = new Uint8Array(model.shape.vocab_size);
    this.allowed.set(isText);
    for (const id of [...this.stopIds, ...toolIds.slice(0, 2)]) this.allowed[id] = 1;
  }

  /** The chunks of an answer. `pause` gives the browser its turn, and tells whether the answer is still wanted.
   * @param {Request} request
   * @param {Pause} pause
   * @returns {AsyncGenerator<Chunk>}
   */
  async *answer(request, pause) {
    const started = performance.now();
    const most = request.max_tokens ?? MAX_TOKENS;
    const { ids, dropped } = this.truncated(declareTools(toConversation(request.messages), this.tools), most);
    const detokenizer = this.#detokenizer(request);
    const room = Math.min(most, this.model.shape.context - ids.length);
    yield { prompt_token_ids: ids };
    let [count, first] = [0, 0]; // tokens, and when the first one came
    let flushed = started;
    let waiting = { parts: /** @type {Part[]} */ ([]), ids: /** @type {number[]} */ ([]) };
    for await (const next of this.#generate(ids, new Sampler(this.allowed, samplingOf(request)), room, pause)) {
      first ||= performance.now();
      count += next.length;
      waiting.ids.push(...next);
      waiting.parts.push(...next.flatMap((id) => detokenizer.push(id)));
      if (detokenizer.stopped) break;
      if (performance.now() - flushed < FLUSH) continue;
      yield chunkOf(waiting);
      waiting = { parts: [], ids: [] };
      flushed = performance.now();
    }
    waiting.parts.push(...detokenizer.finish());
    yield chunkOf(waiting);
    const rate = (1000 * Math.max(0, count - 1)) / Math.max(0.001, performance.now() - first);
    const speed = { tokens_per_second: rate, first_token_ms: first - started, context: this.model.shape.context };
    const read = { dropped_messages: dropped, lost: this.tokenizer.lost(request.messages.at(-1)?.content ?? "") };
    const timings = { ...speed, ...read, prompt_tokens: ids.length, completion_tokens: count };
    const ended = detokenizer.stopped || this.stopIds.has(this.#chosen);
    yield { choices: [{ delta: {}, finish_reason: ended ? "stop" : "length" }], timings };
  }

  /** @param {Request} request */
  #detokenizer(request) {
    const { escapes, answer_prefix: prefix, stop } = this.template;
    const stops = [...stop, ...(request.stop ?? [])];
    return new Detokenizer(this.tokenizer, escapes, request.continue_final_message ? "" : prefix, stops);
  }

  /** The ids that follow a prompt, up to a stop id: at each step one, and after a call the calculator's output.
   * @param {number[]} ids @param {Sampler} sampler @param {number} room tokens that may follow @param {Pause} pause
   */
  async *#generate(ids, sampler, room, pause) {
    /** @type {number[]} */
    const generated = [];
    let pending = this.#rewind(ids);
    while (generated.length < room) {
      const logits = await this.#read(pending, pause);
      if (!logits) return;
      this.#chosen = sampler.sample(logits, generated);
      pending = [this.#chosen, ...this.#output(this.#chosen, generated, room)];
      generated.push(...pending);
      yield pending;
      if (this.stopIds.has(this.#chosen)) return;
    }
  }

  /** The ids of a prompt, without the oldest turns where it is too long, and how many messages were dropped.
   * @param {Message[]} conversation @param {number} most tokens of the answer
   */
  truncated(conversation, most) {
    const { context } = this.model.shape;
    const room = context - Math.min(most, Math.floor(context / 4));
    const turns = conversation.flatMap(({ role }, index) => (role === "user" ? [index] : []));
    let length = 0;
    for (const turn of [0, ...turns]) {
      const shorter = turn === 0 ? conversation : [...conversation.slice(0, turns[0]), ...conversation.slice(turn)];
      const ids = this.promptIds(shorter);
      if (ids.length <= room) return { ids, dropped: conversation.length - shorter.length };
      length = ids.length;
    }
    const advice = "shorten it, or lower max_tokens";
    throw new RequestError(`the message takes ${length} tokens, but the model has room for ${room}: ${advice}`);
  }

  /** @param {Message[]} conversation */
  promptIds(conversation) {
    const controls = [...this.tokenizer.special.keys()];
    return this.tokenizer.encodeSegments(promptSegments(this.template, controls, conversation));
  }

  /** Each token of `ids`, its log probability, and the likeliest tokens at its position.
   * @param {number[]} ids @param {Pause} pause
   */
  async tokens(ids, pause) {
    /** @type {Token[]} */
    const tokens = [{ ...this.#entry(ids[0]), logprob: null, top: [] }];
    this.#rewind([]);
    for (let at = 0; at + 1 < ids.length; at += 1) {
      const logits = await this.#read([ids[at]], pause);
      if (!logits) break;
      const highest = logits.reduce((one, other) => Math.max(one, other), -Infinity);
      const total = highest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0));
      const top = likeliest(logits, TOP).map((id) => ({ ...this.#entry(id), logprob: logits[id] - total }));
      tokens.push({ ...this.#entry(ids[at + 1]), logprob: logits[ids[at + 1]] - total, top });
    }
    return tokens;
  }

  /** Rewind to what the cache has of a prompt; the ids that remain to be read.
   * @param {number[]} ids
   */
  #rewind(ids) {
    let cached = 0;
    while (cached < Math.min(this.#ids.length, ids.length - 1) && this.#ids[cached] === ids[cached]) cached += 1;
    this.#ids.length = this.model.length = cached;
    return ids.slice(cached);
  }

  /** The logits after ids; null if they are no longer wanted.
   * @param {number[]} ids @param {Pause} pause
   */
  async #read(ids, pause) {
    /** @type {Float32Array | null} */
    let logits = null;
    for (const [index, id] of ids.entries()) {
      if (performance.now() - this.#paused > FLUSH) {
        if (!(await pause())) return null;
        this.#paused = performance.now();
      }
      logits = this.model.read(id, index === ids.length - 1);
      this.#ids.push(id);
    }
    return logits;
  }

  /** The ids of the calculator's output after a call that has just ended, if they fit.
   * @param {number} chosen @param {number[]} generated the ids before it @param {number} room
   */
  #output(chosen, generated, room) {
    if (chosen !== this.tool?.end) return [];
    const start = generated.lastIndexOf(this.tool.start);
    const call = generated.slice(start + 1);
    if (start < 0 || call.includes(chosen)) return [];
    const output = this.tokenizer.encodeSegments(outputSegments(calculate(unescape(this.tokenizer.decode(call)))));
    return generated.length + 1 + output.length > room ? [] : output;
  }

  /** @param {number} id */
  #entry(id) {
    const isText = this.tokenizer.isText[id] === 1;
    return {
      id,
      bytes: isText ? [...this.tokenizer.bytes(id)] : [],
      control: isText ? null : this.tokenizer.decode([id]) || String(id),
    };
  }
}

/** The messages of a request; calls, their outputs and the text after them are one message of the assistant.
 * @param {RequestMessage[]} messages @returns {Message[]}
 */
export function toConversation(messages) {
  /** @type {Message[]} */
  const conversation = [];
  for (const { role, content, tool_calls: calls = [] } of messages) {
    if (content && !content.isWellFormed()) throw new RequestError("the message is not valid Unicode");
    const kind = role === "tool" ? "output" : "text";
    const spoken = role === "tool" ? "assistant" : role;
    /** @type {import("./template.js").Part[]} */
    const parts = content || kind === "output" ? [{ kind, text: content ?? "" }] : [];
    for (const call of calls) parts.push({ kind: "call", text: JSON.parse(call.function.arguments).expression });
    const last = conversation.at(-1);
    if (last?.role === spoken && spoken === "assistant") last.parts.push(...parts);
    else conversation.push({ role: spoken, parts });
  }
  if (!conversation.length) throw new RequestError("expected a message, got none");
  return conversation;
}

/** @param {Request} request @returns {import("./sampler.js").Sampling} */
function samplingOf(request) {
  const seed = typeof request.seed === "number" ? request.seed : Math.floor(Math.random() * 2 ** 32);
  const given = Object.keys(DEFAULTS).flatMap((name) => (name in request ? [[name, request[name]]] : []));
  return { ...DEFAULTS, ...Object.fromEntries(given), seed };
}

/** @param {{ parts: Part[], ids: number[] }} added @returns {Chunk} */
function chunkOf({ parts, ids }) {
  return { choices: [{ delta: { parts }, token_ids: ids }] };
}

/** The ids of the highest logits, the highest first.
 * @param {Float32Array} logits @param {number} count
 */
function likeliest(logits, count) {
  /** @type {number[]} */
  const ids = [];
  for (let id = 0; id < logits.length; id += 1) {
    if (ids.length === count && logits[id] <= logits[ids[count - 1]]) continue;
    let at = ids.length;
    while (at > 0 && logits[ids[at - 1]] < logits[id]) at -= 1;
    ids.splice(at, 0, id);
    ids.length = Math.min(ids.length, count);
  }
  return ids;
}
