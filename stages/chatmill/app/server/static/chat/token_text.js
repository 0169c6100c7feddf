// @ts-check
/** The text of a token on the page, and the mark of its probability. */

/** @typedef {import("../shared/api.js").Token} Token */
/** @typedef {Token & { given: boolean }} WrittenToken and whether it is the tool's output */

/** @type {Record<string, string>} */
const MARKS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
const OUTPUT_START = "<|output_start|>";
const OUTPUT_END = "<|output_end|>";

/** The least probability of each step and its name; the marks are in chat.css.
 * @type {[number, string][]}
 */
export const STEPS = [
  [0.9, "≥ 90 %"],
  [0.5, "50–90 %"],
  [0.2, "20–50 %"],
  [0.05, "5–20 %"],
  [0, "< 5 %"],
];

/** A token as it is shown: white space is marked, and bytes of an incomplete character are hexadecimal.
 * @param {Pick<Token, "control" | "bytes">} token
 */
export function visible(token) {
  if (token.control) return token.control;
  const text = decoded(token.bytes);
  if (text === null) return `⟨${hex(token.bytes)}⟩`;
  const marked = text.replace(/[ \n\t\r]/g, (space) => MARKS[space]).replace(/\p{C}/gu, codeOf);
  return marked.replace(/^\p{M}/u, "◌$&"); // an accent without its letter
}

/** A probability as 12.3 %; a small one has two significant digits.
 * @param {number} logprob
 */
export function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return `${share >= 0.1 ? share.toFixed(1) : Number(share.toPrecision(2))} %`;
}

/** Bytes as hexadecimal: "e2 82 ac".
 * @param {number[]} bytes
 */
export function hex(bytes) {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** The tokens, with `given` set for those of a tool's output, which the model did not choose.
 * @param {Token[]} tokens
 * @returns {WrittenToken[]}
 */
export function markToolOutput(tokens) {
  let given = false;
  return tokens.map((token) => {
    given ||= token.control === OUTPUT_START;
    const marked = { ...token, given };
    given &&= token.control !== OUTPUT_END;
    return marked;
  });
}

/** The CSS classes of a token: its step of probability, or that the tool gave it, and whether it is a control token.
 * @param {Pick<WrittenToken, "logprob" | "control" | "given">} token
 */
export function classOf({ logprob, control, given }) {
  const step = logprob === null ? -1 : STEPS.findIndex(([least]) => Math.exp(logprob) >= least);
  const kind = given ? "given" : logprob === null ? "unknown" : `p${step}`;
  return control ? `${kind} control-token` : kind;
}

/** @param {number[]} bytes */
function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null; // an incomplete character
  }
}

/** @param {string} character */
function codeOf(character) {
  return `⟨U+${Number(character.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
