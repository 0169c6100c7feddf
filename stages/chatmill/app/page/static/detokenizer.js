// @ts-check
/** The parts of a reply, from its ids as they are generated. */

import { unescape } from "./template.js";

/** @typedef {import("./template.js").Part} Part */
/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */

const KINDS = /** @type {[string, Part["kind"]][]} */ ([
  ["<|python_start|>", "call"],
  ["<|output_start|>", "output"],
  ["<|python_end|>", "text"],
  ["<|output_end|>", "text"],
]);

/** Decodes UTF-8 that is cut anywhere, and unescapes it where it is escaped. */
class TextStream {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #opened = false; // the last character was a `<`, after which a backslash is dropped

  /** @param {boolean} escaped */
  constructor(escaped) {
    this.escaped = escaped;
  }

  /** @param {Uint8Array} bytes @param {boolean} final */
  push(bytes, final) {
    const text = this.#decoder.decode(bytes, { stream: !final });
    if (!text || !this.escaped) return text;
    const shown = this.#opened ? unescape(`<${text}`).slice(1) : unescape(text);
    this.#opened = text.endsWith("<");
    return shown;
  }
}

export class Detokenizer {
  stopped = false; // at a stop text
  #held = ""; // a possible beginning of a stop text
  #call = ""; // the text of a call or an output that grows
  /** @type {Part["kind"]} */
  #kind = "text";

  /** @param {Tokenizer} tokenizer @param {boolean} escapes @param {string} prefix that is not shown
   * @param {string[]} stops
   */
  constructor(tokenizer, escapes, prefix, stops) {
    this.tokenizer = tokenizer;
    this.escapes = escapes;
    this.prefix = prefix;
    this.stops = stops.filter(Boolean);
    this.kinds = new Map(KINDS.map(([name, kind]) => [tokenizer.special.get(name), kind]));
    this.stream = new TextStream(escapes);
  }

  /** The parts that an id adds.
   * @param {number} id @returns {Part[]}
   */
  push(id) {
    if (this.tokenizer.isText[id]) return this.#add(this.stream.push(this.tokenizer.bytes(id), false), false);
    const kind = this.kinds.get(id) ?? this.#kind;
    if (kind === this.#kind) return [];
    const parts = this.finish();
    this.#kind = kind;
    return parts;
  }

  /** The parts at the end, or where another kind begins. @returns {Part[]} */
  finish() {
    const parts = this.#add(this.stream.push(new Uint8Array(), true), true);
    if (this.#kind !== "text") parts.push({ kind: this.#kind, text: this.#call });
    this.#call = "";
    this.#kind = "text";
    this.stream = new TextStream(this.escapes);
    return parts;
  }

  /** @param {string} text @param {boolean} final @returns {Part[]} */
  #add(text, final) {
    if (this.#kind !== "text") {
      this.#call += text;
      return [];
    }
    if (this.stopped) return [];
    if (text) {
      if (text.startsWith(this.prefix)) text = text.slice(this.prefix.length);
      this.prefix = "";
    }
    const shown = this.#untilStop(text, final);
    return shown ? [{ kind: "text", text: shown }] : [];
  }

  /** @param {string} added @param {boolean} final */
  #untilStop(added, final) {
    const text = this.#held + added;
    const places = this.stops.map((stop) => text.indexOf(stop)).filter((place) => place >= 0);
    this.stopped = places.length > 0;
    const end = this.stopped ? Math.min(...places) : final ? text.length : this.#certain(text);
    this.#held = this.stopped ? "" : text.slice(end);
    return text.slice(0, end);
  }

  /** The length of what can be no beginning of a stop text.
   * @param {string} text
   */
  #certain(text) {
    const longest = Math.max(1, ...this.stops.map((stop) => stop.length));
    for (let place = Math.max(0, text.length - longest + 1); place < text.length; place += 1) {
      if (this.stops.some((stop) => stop.startsWith(text.slice(place)))) return place;
    }
    return text.length;
  }
}
