// @ts-check
/** Conversations as segments, of which each is a control token or text: the same as chatmill's templates give. */

/** @typedef {import("./tokenizer.js").Segment} Segment */
/** @typedef {{ kind: "text" | "call" | "output", text: string }} Part */
/** @typedef {{ role: string, parts: Part[] }} Message */
/** @typedef {[string, string]} Delimiters the text before and after a message */
/** @typedef {{ name: string, escapes: boolean, answer_prefix: string, end_token: string, stop: string[],
 *   layout: null | { begin: string, user: Delimiters, assistant: Delimiters, system: Delimiters,
 *   system_in_user: boolean }, leading_space: boolean, lstrip: string[], rstrip: string[] }} Description
 *   without a layout it is one of chatmill's own */

const MARKERS = /** @type {Record<string, string>} */ ({ system: "System:", user: "Human:", assistant: "Assistant:" });
const BRACKETS = {
  call: ["<|python_start|>", "<|python_end|>"],
  output: ["<|output_start|>", "<|output_end|>"],
};
const DECLARATION = "Tools: ";
const START = /^\p{White_Space}+/u;
const END = /\p{White_Space}+$/u;

/** Text without `<|`: `a<|b` becomes `a<\|b`. `unescape` inverts it.
 * @param {string} text
 */
export function escape(text) {
  return text.replaceAll("<\\", "<\\\\").replaceAll("<|", "<\\|");
}

/** The original of an escaped text.
 * @param {string} text
 */
export function unescape(text) {
  return text.replaceAll("<\\", "<");
}

/** The text of a message, without calls and outputs.
 * @param {Message} message
 */
export function textOf({ parts }) {
  return parts.map(({ kind, text }) => (kind === "text" ? text : "")).join("");
}

/** The conversation with these tools declared; one that declares tools stays as it is.
 * @param {Message[]} conversation @param {string[]} tools
 * @returns {Message[]}
 */
export function declareTools(conversation, tools) {
  const [first, ...rest] = conversation;
  const system = first?.role === "system" ? textOf(first) : "";
  if (!tools.length || system.startsWith(DECLARATION)) return conversation;
  const line = `${DECLARATION}${tools.join(", ")}`;
  /** @type {Message} */
  const declared = { role: "system", parts: [{ kind: "text", text: system ? `${line}\n${system}` : line }] };
  return [declared, ...(first?.role === "system" ? rest : conversation)];
}

/** @param {string} output @returns {Segment[]} */
export function outputSegments(output) {
  return bracketed("output", output);
}

/** A conversation and the beginning of the answer; a last message of the assistant is continued.
 * @param {Description} template @param {string[]} controls @param {Message[]} conversation
 * @returns {Segment[]}
 */
export function promptSegments(template, controls, conversation) {
  const continues = conversation.at(-1)?.role === "assistant";
  if (template.layout) return new Layout(template, controls).prompt(conversation, continues);
  const own = template.name;
  const segments = [control("<|bos|>"), ...conversation.flatMap((message) => ownMessage(message, own))];
  return continues ? segments.slice(0, -2) : [...segments, ...ownHeader("assistant", own)];
}

/** @param {string} text @returns {Segment} */
function control(text) {
  return { text, control: true };
}

/** @param {string} role @param {string} name @returns {Segment[]} */
function ownHeader(role, name) {
  return name === "markers" ? [{ text: MARKERS[role] }] : [control("<|im_start|>"), { text: `${role}\n` }];
}

/** @param {"call" | "output"} kind @param {string} text @returns {Segment[]} */
function bracketed(kind, text) {
  const [start, end] = BRACKETS[kind];
  return [control(start), { text: escape(text) }, control(end)];
}

/** @param {Message} message @param {string} name @returns {Segment[]} */
function ownMessage({ role, parts }, name) {
  const content = parts.flatMap(({ kind, text }) => {
    return kind === "text" ? [{ text: escape(text) }] : bracketed(kind, text);
  });
  const isMarkers = name === "markers";
  const ends = !isMarkers || role === "assistant" ? [control("<|im_end|>")] : [];
  const space = isMarkers && parts.length ? [{ text: " " }] : [];
  const segments = [...ownHeader(role, name), ...space, ...content, ...ends, { text: isMarkers ? "\n\n" : "\n" }];
  return segments.filter(({ text }) => text);
}

/** The layout of an external model, in the tokens of its tokenizer. */
class Layout {
  /** @param {Description} template @param {string[]} controls */
  constructor(template, controls) {
    if (!template.layout) throw new Error("the template has no layout");
    this.template = template;
    this.layout = template.layout;
    this.controls = [...controls].filter(Boolean).sort((one, other) => other.length - one.length);
    this.header = this.layout.assistant[0].replace(/ +$/, "");
  }

  /** @param {Message[]} conversation @param {boolean} continues @returns {Segment[]} */
  prompt(conversation, continues) {
    const before = continues ? conversation.slice(0, -1) : conversation;
    const last = conversation[conversation.length - 1];
    const answer = continues ? [{ text: this.template.answer_prefix + textOf(last) }] : [];
    return this.#withSpaces([...this.#messages(before), ...this.#split(this.header), ...answer]);
  }

  /** @param {Message[]} conversation */
  #messages(conversation) {
    const given = conversation.find(({ role }) => role === "system");
    let system = given ? textOf(given) : "";
    const isMessage = Boolean(system) && !this.layout.system_in_user;
    /** @type {Segment[]} */
    const segments = isMessage ? this.#message("system", system) : this.#split(this.layout.begin);
    if (isMessage) system = "";
    for (const message of conversation) {
      if (message.role === "assistant") segments.push(...this.#message("assistant", textOf(message)));
      if (message.role !== "user") continue;
      const [before, after] = this.layout.system;
      const text = textOf(message);
      segments.push(...this.#message("user", system ? `${before}${system}${after}${text}` : text));
      system = "";
    }
    return segments;
  }

  /** @param {"user" | "assistant" | "system"} role @param {string} text */
  #message(role, text) {
    const [before, after] = this.layout[role];
    const header = before.replace(/ +$/, "");
    return [...this.#split(header), { text: before.slice(header.length) + text }, ...this.#split(after)];
  }

  /** Text of the layout, split at its control tokens.
   * @param {string} text @returns {Segment[]}
   */
  #split(text) {
    /** @type {Segment[]} */
    const segments = [];
    let plain = "";
    for (let at = 0; at < text.length; ) {
      const name = this.controls.find((one) => text.startsWith(one, at));
      if (name) {
        segments.push({ text: plain }, control(name));
        plain = "";
      } else plain += text[at];
      at += name?.length ?? 1;
    }
    return [...segments, { text: plain }].filter((segment) => segment.text);
  }

  /** Add the space that the tokenizer puts before a text at the beginning, and after each control token.
   * @param {Segment[]} segments
   */
  #withSpaces(segments) {
    /** @type {Segment[]} */
    const result = [];
    for (const segment of this.#stripped(segments)) {
      const last = result.at(-1);
      const starts = !segment.control && this.template.leading_space && (!last || last.control);
      result.push(starts ? { text: ` ${segment.text}` } : segment);
    }
    return result;
  }

  /** Remove the whitespace that control tokens take.
   * @param {Segment[]} segments
   */
  #stripped(segments) {
    const { lstrip, rstrip } = this.template;
    /** @type {Segment[]} */
    const result = [];
    let previous = "";
    for (let segment of segments) {
      if (segment.control) {
        while (lstrip.includes(segment.text) && result.length && !result[result.length - 1].control) {
          const text = (result.pop()?.text ?? "").replace(END, "");
          if (!text) continue;
          result.push({ text });
          break;
        }
        previous = segment.text;
      } else if (rstrip.includes(previous)) segment = { text: segment.text.replace(START, "") };
      if (!segment.text) continue;
      result.push(segment);
      previous = segment.control ? segment.text : "";
    }
    return result;
  }
}
