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
/** @typedef {{ messages: RequestMessage[], max_tokens?: number, stop?: string[], [name: string]: unknown }} Request */
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
   * @param {() => Promise<boolean>} pause
   * @returns {AsyncGenerator<Chunk>}
   */
  async *answer(request, pause) {
    const started = performance.now();
    const most = request.max_tokens ?? MAX_TOKENS;
    const continues = request.continue_final_message === true;
    const conversation = declareTools(toConversation(request.messages), this.tools);
    const { ids, dropped } = this.truncated(conversation, most);
    const prefix = continues ? "" : this.template.answer_prefix;
    const stops = [...this.template.stop, .../** @type {string[]} */ (request.stop ?? [])];
    const detokenizer = new Detokenizer(this.tokenizer, this.template.escapes, prefix, stops);
    const sampler = new Sampler(this.allowed, samplingOf(request));
    yield { prompt_token_ids: ids };
    /** @type {number[]} */
    const generated = [];
    let pending = this.#rewind(ids);
    const room = Math.min(most, this.model.shape.context - ids.length);
    let finish = "length";
    let first = 0;
    let flushed = started;
    /** @type {import("./template.js").Part[]} */
    let parts = [];
    let sent = 0;
    while (generated.length < room) {
      const logits = await this.#read(pending, pause);
      if (!logits) return;
      const next = this.#step(sampler.sample(logits, generated), generated, room);
      first ||= performance.now();
      for (const id of next) {
        generated.push(id);
        parts.push(...detokenizer.push(id));
      }
      pending = next;
      if (detokenizer.stopped || this.stopIds.has(next[0])) {
        finish = "stop";
        break;
      }
      if (performance.now() - flushed < FLUSH) continue;
      yield chunkOf(parts, generated.slice(sent));
      parts = [];
      sent = generated.length;
      flushed = performance.now();
    }
    yield chunkOf([...parts, ...detokenizer.finish()], generated.slice(sent));
    const seconds = (performance.now() - first) / 1000;
    const timings = {
      prompt_tokens: ids.length,
      completion_tokens: generated.length,
      first_token_ms: first - started,
      tokens_per_second: seconds > 0 && generated.length > 1 ? (generated.length - 1) / seconds : 0,
      context: this.model.shape.context,
      dropped_messages: dropped,
    };
    yield { choices: [{ delta: {}, finish_reason: finish }], timings };
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
    return this.tokenizer.encodeSegments(promptSegments(this.template, [...this.tokenizer.special.keys()], conversation));
  }

  /** Each token of `ids`, its log probability, and the likeliest tokens at its position.
   * @param {number[]} ids @param {() => Promise<boolean>} pause
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

  #paused = 0;

  /** The logits after ids; null if they are no longer wanted.
   * @param {number[]} ids @param {() => Promise<boolean>} pause
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

  /** The chosen id, and after a call the ids of the calculator's output if they fit.
   * @param {number} chosen @param {number[]} generated @param {number} room
   */
  #step(chosen, generated, room) {
    if (chosen !== this.tool?.end) return [chosen];
    const start = generated.lastIndexOf(this.tool.start);
    const call = generated.slice(start + 1);
    if (start < 0 || call.includes(chosen)) return [chosen];
    const output = this.tokenizer.encodeSegments(outputSegments(calculate(unescape(this.tokenizer.decode(call)))));
    return generated.length + 1 + output.length > room ? [chosen] : [chosen, ...output];
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

/** @param {import("./template.js").Part[]} parts @param {number[]} ids @returns {Chunk} */
function chunkOf(parts, ids) {
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
