// @ts-check
/** The tokens of a prompt and its answer, each marked by its probability. */

import { fetchTokens } from "../shared/api.js";
import { element, pluralize } from "../shared/dom.js";

/** @typedef {import("../shared/api.js").Candidate} Candidate */
/** @typedef {import("../shared/api.js").Token} Token */
/** @typedef {Token & { given: boolean }} WrittenToken and whether it is the tool's output */

const MARGIN = 8; // pixels between the card and the edge of the window
const OUTPUT_START = "<|output_start|>";
const OUTPUT_END = "<|output_end|>";
/** @type {Record<string, string>} */
const MARKS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };

/** The least probability of each step and its name; the marks are in chat.css.
 * @type {[number, string][]}
 */
const STEPS = [
  [0.9, "≥ 90 %"],
  [0.5, "50–90 %"],
  [0.2, "20–50 %"],
  [0.05, "5–20 %"],
  [0, "< 5 %"],
];

/** Show the tokens of an answer in a node, when they are loaded. Throws ApiError.
 * @param {import("./conversation.js").Answer} answer
 * @param {HTMLElement} node
 */
export async function showTokens(answer, node) {
  node.replaceChildren(element("p", { className: "hint" }, "loading the tokens …"));
  const tokens = markToolOutput(await fetchTokens(answer.model, [...answer.promptIds, ...answer.ids]));
  const card = new Card();
  const prompt = tokens.slice(0, answer.promptIds.length);
  const generated = tokens.slice(answer.promptIds.length);
  const lists = [tokenList("Prompt", prompt, card), tokenList("Answer", generated, card)];
  node.replaceChildren(legend(tokens), ...lists, card.node);
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

/** @param {WrittenToken[]} tokens */
function legend(tokens) {
  const steps = STEPS.map(([, name], step) => element("li", { className: `token p${step}` }, name));
  if (tokens.some(({ given }) => given)) steps.push(element("li", { className: "token given" }, "tool output"));
  const hint = element("p", { className: "hint" }, "Move with arrow keys.");
  return element("div", { className: "legend" }, "Probability:", element("ul", {}, ...steps), hint);
}

/** A list in which Tab reaches one token, and the arrow keys the others.
 * @param {string} name @param {WrittenToken[]} tokens @param {Card} card
 */
function tokenList(name, tokens, card) {
  const list = element("ol", { className: "tokens", "aria-label": `Tokens of the ${name.toLowerCase()}` });
  const nodes = tokens.map((token) => tokenButton(token, card));
  nodes.forEach((node, index) => {
    node.tabIndex = index ? -1 : 0;
    const endsLine = tokens[index].bytes.at(-1) === 10 && !tokens[index].control;
    list.append(element("li", endsLine ? { className: "ends-line" } : {}, node));
  });
  list.addEventListener("keydown", (event) => {
    const at = nodes.findIndex((node) => node === event.target);
    /** @type {Record<string, number>} */
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: nodes.length - 1 };
    const next = nodes[places[event.key]];
    if (!next) return;
    event.preventDefault();
    nodes[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return element("section", {}, element("h3", {}, `${name}: ${pluralize(tokens.length, "token")}`), list);
}

/** @param {WrittenToken} token @param {Card} card */
function tokenButton(token, card) {
  const text = visible(token);
  const name = `${text}, id ${token.id}${token.logprob === null ? "" : `, ${percent(token.logprob)}`}`;
  const look = { type: "button", className: `token ${classOf(token)}`, "aria-label": name };
  const node = element("button", look, text);
  node.onpointerenter = node.onfocus = () => card.show(token, node);
  node.onpointerleave = () => card.hideSoon();
  node.onblur = () => card.hide();
  return node;
}

/** What is known of the token under the pointer, or with the focus. */
class Card {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #hiding;
  node = element("div", { id: "token-card", popover: "manual", role: "tooltip" });

  constructor() {
    this.node.onpointerenter = () => clearTimeout(this.#hiding);
    this.node.onpointerleave = () => this.hide();
  }

  /** @param {WrittenToken} token @param {HTMLElement} at */
  show(token, at) {
    clearTimeout(this.#hiding);
    this.node.replaceChildren(...details(token));
    at.setAttribute("aria-describedby", this.node.id);
    this.node.togglePopover(true);
    addEventListener("scroll", () => this.hide(), { capture: true, once: true });
    const box = at.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const isAbove = box.bottom + height + MARGIN > innerHeight && box.top > height + MARGIN;
    this.node.style.left = `${Math.max(MARGIN, Math.min(box.left, innerWidth - width - MARGIN))}px`;
    this.node.style.top = `${isAbove ? box.top - height - 4 : box.bottom + 4}px`;
  }

  /** Hide the card, unless the pointer reaches it meanwhile. */
  hideSoon() {
    this.#hiding = setTimeout(() => this.hide(), 150);
  }

  hide() {
    if (this.node.matches(":popover-open")) this.node.hidePopover();
  }
}

/** @param {WrittenToken} token */
function details(token) {
  const rows = [
    ["Token", visible(token)],
    ["Id", String(token.id)],
    ["Bytes", token.bytes.length ? hex(token.bytes) : "none"],
    ["Probability", token.logprob === null ? "none, as it is the first" : percent(token.logprob)],
    ...(token.given ? [["Written by", "the tool, not the model"]] : []),
  ];
  const facts = rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const top = (token.top ?? []).map((one) => candidate(one, one.id === token.id));
  if (!top.length) return [element("dl", {}, ...facts)];
  return [element("dl", {}, ...facts), element("h4", {}, "Likeliest tokens here"), element("ol", {}, ...top)];
}

/** @param {Candidate} token @param {boolean} isChosen */
function candidate(token, isChosen) {
  const bar = element("span", { className: "share" });
  bar.style.width = `${100 * Math.exp(token.logprob)}%`;
  const words = element("span", { className: "words" }, `${visible(token)}${isChosen ? " ✓" : ""}`);
  return element("li", isChosen ? { className: "chosen" } : {}, words, ` ${percent(token.logprob)}`, bar);
}

/** A token as it is shown: white space is marked, and bytes of an incomplete character are hexadecimal.
 * @param {Pick<Token, "control" | "bytes">} token
 */
export function visible({ control, bytes }) {
  if (control) return control;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
    const marked = text.replace(/[ \n\t\r]/g, (space) => MARKS[space]).replace(/\p{C}/gu, codeOf);
    return marked.replace(/^\p{M}/u, "◌$&"); // an accent without its letter
  } catch {
    return `⟨${hex(bytes)}⟩`; // an incomplete character
  }
}

/** A probability as 12.3 %; a small one has two significant digits.
 * @param {number} logprob
 */
export function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return `${share >= 0.1 ? share.toFixed(1) : Number(share.toPrecision(2))} %`;
}

/** The CSS classes of a token: its step of probability, or that the tool gave it, and whether it is a control token.
 * @param {Pick<WrittenToken, "logprob" | "control" | "given">} token
 */
export function classOf({ logprob, control, given }) {
  const step = logprob === null ? -1 : STEPS.findIndex(([least]) => Math.exp(logprob) >= least);
  const kind = given ? "given" : logprob === null ? "unknown" : `p${step}`;
  return control ? `${kind} control-token` : kind;
}

/** Bytes as hexadecimal: "e2 82 ac".
 * @param {number[]} bytes
 */
function hex(bytes) {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** @param {string} character */
function codeOf(character) {
  return `⟨U+${Number(character.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
