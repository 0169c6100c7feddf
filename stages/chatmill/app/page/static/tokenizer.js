// @ts-check
/** Text to token ids and back, by the algorithm that the vocabulary names.
 *
 * The bytes of a text or token are a string with one character for each byte. The ids are those of
 * chatmill/tokenizer/formats/README.md.
 */

/** @typedef {"lookup" | "merge" | "wordpiece" | "viterbi"} Algorithm */
/** @typedef {{ content: string, id: number, single_word: boolean, late: boolean }} Added */
/** @typedef {{ algorithm: Algorithm, pattern: string | null, splits: string[], marked: boolean, plain: boolean,
 *   exact: boolean, tokens: string[], kinds: number[], scores: Float64Array, merges: Uint32Array, added: Added[],
 *   special: Record<string, number> }} Vocabulary `exact` scores are added as float64 */
/** @typedef {{ text: string, control?: boolean }} Segment */

const UNKNOWN_PENALTY = 10; // a character without a token scores so much less than any token
const SMALLEST = 2 ** -126;
const MOST_CACHED = 1 << 16;
const [NORMAL, CONTINUATION, FALLBACK, , , UNKNOWN, ADDED] = [0, 1, 2, 3, 4, 5, 6];
const WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;
const encoder = new TextEncoder();

export class Tokenizer {
  /** @type {Map<string, number[]>} */
  #cache = new Map();

  /** @param {Vocabulary} vocabulary */
  constructor(vocabulary) {
    const { tokens, kinds, algorithm } = vocabulary;
    this.vocabulary = vocabulary;
    this.special = new Map(Object.entries(vocabulary.special));
    this.isText = Uint8Array.from(kinds, (kind) => Number([NORMAL, CONTINUATION, FALLBACK, ADDED].includes(kind)));
    /** @type {Map<string, number>[]} */
    this.ids = Array.from({ length: 7 }, () => new Map());
    tokens.forEach((token, id) => this.ids[kinds[id]].set(token, id));
    this.normal = this.ids[NORMAL];
    const single = this.ids[FALLBACK].size ? this.ids[FALLBACK] : this.normal;
    this.byteIds = Array.from({ length: 256 }, (_, byte) => single.get(String.fromCharCode(byte)) ?? -1);
    this.longest = tokens.reduce((longest, token) => Math.max(longest, token.length), 0) + 2;
    const late = vocabulary.added.filter((token) => token.late);
    const scored = algorithm === "viterbi" && !vocabulary.exact;
    this.early = scored ? null : search(vocabulary.added.filter((token) => !token.late));
    this.late = scored ? null : search(late);
    this.pattern = vocabulary.pattern === null ? null : new RegExp(vocabulary.pattern, "gu");
    this.splits = vocabulary.splits.map((split) => new RegExp(split, "gu"));
    this.algorithm = {
      lookup: this.#lookup,
      merge: this.#merge,
      wordpiece: this.#wordpiece,
      viterbi: this.#viterbi,
    }[algorithm];
    if (algorithm === "merge") this.merges = mergeTable(vocabulary, this.normal);
    if (algorithm === "wordpiece") this.#prepareWords();
    if (algorithm === "viterbi") this.#prepareScores(scored);
  }

  /** The ids of a text, of which none is a control id.
   * @param {string} text
   */
  encode(text) {
    /** @type {number[]} */
    const ids = [];
    for (const part of found(text, this.early)) {
      if (typeof part === "number") ids.push(part);
      else {
        for (const stretch of found(part, this.late)) {
          if (typeof stretch === "number") ids.push(stretch);
          else for (const piece of this.#pieces(stretch)) for (const id of this.#idsOf(piece)) ids.push(id);
        }
      }
    }
    return ids;
  }

  /** The characters of a text that its tokens do not say, each once; mostly none.
   * @param {string} text
   */
  lost(text) {
    if (this.vocabulary.algorithm !== "merge" || this.ids[UNKNOWN].size || !this.byteIds.includes(-1)) return "";
    const isLost = (/** @type {string} */ char) => encoder.encode(char).some((byte) => this.byteIds[byte] < 0);
    return [...new Set(text)].filter(isLost).join("");
  }

  /** The ids of segments; adjacent texts are encoded together.
   * @param {Segment[]} segments
   */
  encodeSegments(segments) {
    /** @type {number[]} */
    const ids = [];
    let text = "";
    const flush = () => {
      if (text) for (const id of this.encode(text)) ids.push(id);
      text = "";
    };
    for (const segment of segments) {
      if (!segment.control) text += segment.text;
      else {
        flush();
        const id = this.special.get(segment.text);
        if (id === undefined) throw new Error(`the tokenizer has no control token ${segment.text}`);
        ids.push(id);
      }
    }
    flush();
    return ids;
  }

  /** The text of ids; invalid UTF-8 becomes U+FFFD.
   * @param {number[]} ids
   */
  decode(ids) {
    const bytes = ids.map((id) => this.vocabulary.tokens[id]).join("");
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(toArray(bytes));
  }

  /** The bytes of an id.
   * @param {number} id
   */
  bytes(id) {
    return toArray(this.vocabulary.tokens[id] ?? "");
  }

  /** @param {string} text @returns {string[]} */
  #pieces(text) {
    let parts = [text];
    for (const split of this.splits) parts = parts.flatMap((part) => isolated(part, split));
    if (this.vocabulary.marked) parts = parts.flatMap((part) => part.split(/(\u2581)/).filter(Boolean));
    const { pattern } = this;
    return pattern ? parts.flatMap((part) => part.match(pattern) ?? []) : parts;
  }

  /** @param {string} piece */
  #idsOf(piece) {
    const cached = this.#cache.get(piece);
    if (cached) return cached;
    const ids = this.algorithm(toBytes(piece), piece);
    if (piece.length < 64 && this.#cache.size < MOST_CACHED) this.#cache.set(piece, ids);
    return ids;
  }

  /** @param {string} data */
  #bytesOf(data) {
    return Array.from(data, (byte) => this.byteIds[byte.charCodeAt(0)]);
  }

  /** The complete piece, or else its bytes.
   * @param {string} data
   */
  #lookup(data) {
    const id = this.normal.get(data);
    return id === undefined ? this.#bytesOf(data) : [id];
  }

  /** The complete piece, or else its bytes (without a pattern: characters) merged by pairs, lowest rank first.
   * @param {string} data @param {string} piece
   */
  #merge(data, piece) {
    const ids = this.vocabulary.marked ? this.#characters(piece) : this.#lookup(data);
    return ids.length > 1 ? mergePairs(ids, this.merges ?? new Map(), this.vocabulary.tokens.length) : ids;
  }

  /** @param {string} piece */
  #characters(piece) {
    return [...piece].flatMap((character) => this.#lookup(toBytes(character)));
  }

  #prepareWords() {
    this.continuing = this.ids[CONTINUATION];
    this.initial = new Map(this.normal);
    if (this.vocabulary.plain) for (const [token, id] of this.continuing) this.initial.set(`##${token}`, id);
  }

  /** From the left, the longest entry each time: the first one initial, the others continuations.
   * @param {string} data
   */
  #wordpiece(data) {
    const ids = [];
    let entries = this.initial ?? this.normal;
    for (let start = 0; start < data.length; ) {
      let end = Math.min(data.length, start + this.longest);
      while (end > start && !entries.has(data.slice(start, end))) end -= 1;
      if (end === start) throw new Error("the tokenizer has no token for a byte");
      ids.push(entries.get(data.slice(start, end)) ?? -1);
      entries = this.continuing ?? this.normal;
      start = end;
    }
    return ids;
  }

  /** @param {boolean} scored whether added tokens have the best scores of all */
  #prepareScores(scored) {
    const { scores, exact } = this.vocabulary;
    this.round = exact ? (/** @type {number} */ score) => score : Math.fround;
    /** @type {Map<string, [number, number]>} */
    this.candidates = new Map();
    let least = Infinity;
    let highest = SMALLEST;
    for (const [token, id] of this.normal) {
      this.candidates.set(token, [id, scores[id]]);
      least = Math.min(least, scores[id]);
      highest = Math.max(highest, scores[id]);
    }
    this.unknownScore = this.round((least === Infinity ? 0 : least) - UNKNOWN_PENALTY);
    for (const [token, id] of scored ? this.ids[ADDED] : []) {
      const length = token.length + 2 * (token.split(" ").length - 1); // U+2581 has three bytes
      this.candidates.set(token, [id, Math.fround(length * highest - 0.1)]);
    }
  }

  /** The split with the greatest sum of scores; of equal ones, that with the longest token before each place.
   * @param {string} data
   */
  #viterbi(data) {
    const { candidates = new Map(), round = Math.fround, unknownScore = 0 } = this;
    const sums = new Float64Array(data.length + 1).fill(-Infinity);
    const from = new Int32Array(data.length + 1);
    const last = new Int32Array(data.length + 1); // the id that ends here; -1 for a character without a token
    const take = (/** @type {number} */ sum, /** @type {number} */ start, /** @type {number} */ stop, id = -1) => {
      if (sum <= sums[stop]) return;
      sums[stop] = sum;
      from[stop] = start;
      last[stop] = id;
    };
    sums[0] = 0;
    for (let start = 0, next = 1; start < data.length; start = next, next = start + 1) {
      while (next < data.length && (data.charCodeAt(next) & 0xc0) === 0x80) next += 1;
      let isCovered = false;
      for (let stop = start + 1; stop <= Math.min(start + this.longest, data.length); stop += 1) {
        const entry = candidates.get(data.slice(start, stop));
        if (!entry) continue;
        isCovered ||= stop === next;
        take(round(sums[start] + entry[1]), start, stop, entry[0]);
      }
      if (!isCovered) take(round(sums[start] + unknownScore), start, next);
    }
    const ids = [];
    for (let end = data.length; end > 0; end = from[end]) {
      if (last[end] >= 0) ids.push(last[end]);
      else ids.push(...this.#lookup(data.slice(from[end], end)).reverse());
    }
    return ids.reverse();
  }
}

/** The bytes of a text.
 * @param {string} text
 */
function toBytes(text) {
  let data = "";
  for (const byte of encoder.encode(text)) data += String.fromCharCode(byte);
  return data;
}

/** @param {string} data */
function toArray(data) {
  return Uint8Array.from(data, (byte) => byte.charCodeAt(0));
}

/** The rank of each pair of ids, and the id that they become; the key of a pair is left * V + right.
 * @param {Vocabulary} vocabulary @param {Map<string, number>} normal
 */
function mergeTable({ merges, tokens }, normal) {
  /** @type {Map<number, [number, number]>} */
  const table = new Map();
  for (let rank = 0; rank < merges.length / 2; rank += 1) {
    const [left, right] = [merges[2 * rank], merges[2 * rank + 1]];
    table.set(left * tokens.length + right, [rank, normal.get(tokens[left] + tokens[right]) ?? -1]);
  }
  return table;
}

/** The ids after all merges, lowest rank first, of equal ranks the first: ids in a linked list, and pairs in a heap.
 * @param {number[]} ids @param {Map<number, [number, number]>} merges @param {number} size
 */
function mergePairs(ids, merges, size) {
  const following = ids.map((_, place) => place + 1);
  const before = ids.map((_, place) => place - 1);
  const heap = /** @type {number[]} */ ([]); // rank * 2^31 + place
  const push = (/** @type {number} */ place) => {
    const next = following[place];
    const merge = next < ids.length ? merges.get(ids[place] * size + ids[next]) : undefined;
    if (merge) pushHeap(heap, merge[0] * 2 ** 31 + place);
  };
  for (let place = 0; place < ids.length; place += 1) push(place);
  while (heap.length) {
    const least = popHeap(heap);
    const place = least % 2 ** 31;
    const next = following[place];
    const merge = ids[place] >= 0 && next < ids.length ? merges.get(ids[place] * size + ids[next]) : undefined;
    if (!merge || merge[0] * 2 ** 31 + place !== least) continue; // the pair has changed since
    ids[place] = merge[1];
    ids[next] = -1;
    following[place] = following[next];
    if (following[next] < ids.length) before[following[next]] = place;
    push(place);
    if (before[place] >= 0) push(before[place]);
  }
  return ids.filter((id) => id >= 0);
}

/** @param {number[]} heap @param {number} value */
function pushHeap(heap, value) {
  let at = heap.push(value) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (heap[parent] <= value) break;
    heap[at] = heap[parent];
    at = parent;
  }
  heap[at] = value;
}

/** @param {number[]} heap of at least one value */
function popHeap(heap) {
  const least = heap[0];
  const value = heap.pop() ?? 0;
  const count = heap.length;
  if (!count) return least;
  let at = 0;
  for (let child = 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child += 1;
    if (heap[child] >= value) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = value;
  return least;
}

/** The matches of an expression, and the texts between them.
 * @param {string} text @param {RegExp} expression
 */
function isolated(text, expression) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(expression)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    if (match[0]) parts.push(match[0]);
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

/** @param {Added[]} tokens */
function search(tokens) {
  if (!tokens.length) return null;
  const byText = new Map(tokens.map((token) => [token.content, token]));
  const names = [...byText.keys()].sort((one, other) => [...other].length - [...one].length);
  const escaped = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return { byText, expression: new RegExp(escaped.join("|"), "gu") };
}

/** The ids of the added tokens in a text, the longest first, and the texts between them.
 * @param {string} text @param {ReturnType<typeof search>} added
 */
function found(text, added) {
  /** @type {(string | number)[]} */
  const parts = [];
  let end = 0;
  for (const match of added ? text.matchAll(added.expression) : []) {
    const token = added?.byText.get(match[0]);
    const stop = match.index + match[0].length;
    if (!token || (token.single_word && isInWord(text, match.index, stop))) continue;
    if (end < match.index) parts.push(text.slice(end, match.index));
    parts.push(token.id);
    end = stop;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

/** @param {string} text @param {number} start @param {number} stop */
function isInWord(text, start, stop) {
  const before = [...text.slice(Math.max(0, start - 2), start)].at(-1) ?? "";
  return WORD.test(before) || WORD.test(String.fromCodePoint(text.codePointAt(stop) ?? 0));
}
