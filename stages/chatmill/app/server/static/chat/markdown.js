// @ts-check
/** Markdown as a tree of elements, made from the tokens of the library markdown-it.
 *
 *     "a *b*" → [{ start: 0, line: 0, node: { name: "p", attributes: {}, children: ["a ", { name: "em", … }] } }]
 *
 * The library itself writes HTML, but no text of a model may become HTML. This module makes elements of a fixed list
 * from the library's tokens, with text inside. HTML stays text, links lead only to web and mail addresses, and an image
 * becomes a link. References and underlined headings are not supported, because they depend on text that comes later:
 * without them, a growing text is parsed again from its last block only.
 */

import MarkdownIt from "../vendor/markdown-it.esm.min.mjs";

/** @typedef {import("../vendor/markdown-it.esm.min.mjs").Token} Token */
/** @typedef {import("../vendor/markdown-it.esm.min.mjs").StateBlock} StateBlock */
/** @typedef {{ name: string, attributes: Record<string, string>, children: Tree[] }} Branch an element */
/** @typedef {Branch | string} Tree an element, or text */
/** @typedef {{ start: number, line: number, node: Branch }} Block an element, and the character and line where it starts */

const MAX_LEVELS = 16; // nested lists (two levels each) and quotes; deeper ones are text
const MAX_OPEN = 40; // nested elements; deeper ones are left out, and their text is kept
const MAX_COLUMNS = 200; // of a table whose head is incomplete
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const NEW_TAB = { target: "_blank", rel: "noopener noreferrer" };
const LINE_END = /\r\n?|\n/g;
const FENCE_START = /^((?:[ \t>]|[-*+] |\d{1,9}[.)] )*)(?:`+|~+)[ \t]*$/; // may start or end a code block
const ROW = /^ {0,3}\|/;
const DELIMITER_START = /^ {0,3}(\|[ \t:|-]*)?$/;

const parser = newParser();

/** The blocks of a text from a position, at which a block must start.
 * @param {string} text
 * @param {number} position
 * @returns {Block[]}
 */
export function blocksOf(text, position = 0) {
  const rest = text.slice(position);
  const starts = [0, ...Array.from(rest.matchAll(LINE_END), ({ index, 0: end }) => index + end.length)];
  const blocks = [];
  let tokens = /** @type {Token[]} */ ([]);
  for (const token of parser.parse(rest, {})) {
    tokens.push(token);
    if (token.level > 0 || token.nesting > 0) continue;
    const line = tokens[0].map?.[0] ?? 0;
    blocks.push({ start: position + starts[line], line, node: /** @type {Branch} */ (treesOf(tokens)[0]) });
    tokens = [];
  }
  return blocks;
}

/** The blocks of a text that is still growing, shown as they will look when the text is complete.
 *
 * A last line of backticks is held back, and the head of a table is shown as a table before its second line is there.
 * @param {string} text
 * @param {number} position
 * @returns {Block[]}
 */
export function blocksSoFar(text, position = 0) {
  const end = text.lastIndexOf("\n") + 1;
  const fence = FENCE_START.exec(text.slice(end));
  const shown = fence ? text.slice(0, end) + fence[1].trimEnd() : text;
  const blocks = blocksOf(shown, position);
  const last = blocks.at(-1);
  const table = last?.node.name === "p" ? asTable(shown.slice(last.start)) : null;
  if (!last || table === null) return blocks;
  const more = blocksOf(shown.slice(0, last.start) + table, last.start);
  return [...blocks.slice(0, -1), ...more.map((block) => ({ ...block, line: block.line + last.line }))];
}

/** The number of lines of a text, from a position.
 * @param {string} text
 * @param {number} position
 */
export function countLines(text, position = 0) {
  return text.slice(position).split(LINE_END).length;
}

function newParser() {
  const parser = new MarkdownIt({ html: false, linkify: true, typographer: false, maxNesting: 100 });
  parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  parser.disable(["code", "entity", "lheading", "reference"]);
  parser.validateLink = (url) => SAFE_LINK.test(url.trim());
  parser.block.ruler.before("table", "too_deep", limitNesting);
  parser.inline.State = class extends parser.inline.State {
    /** A star inside a word is no markup, like an underscore, so that `2*3*4` keeps its stars.
     * @override
     * @param {number} start
     */
    scanDelims(start) {
      return super.scanDelims(start, false);
    }
  };
  return parser;
}

/** A rule of the library that makes a paragraph of a block that is nested too deep.
 * @param {StateBlock} state
 * @param {number} begin
 * @param {number} end
 */
function limitNesting(state, begin, end) {
  if (state.level < MAX_LEVELS) return false;
  let next = begin + 1;
  while (next < end && (state.sCount[next] < 0 || state.sCount[next] >= state.blkIndent)) next += 1;
  state.line = next;
  state.push("paragraph_open", "p", 1).map = [begin, next];
  const inline = state.push("inline", "", 0);
  Object.assign(inline, { content: state.getLines(begin, next, state.blkIndent, false).trim(), children: [] });
  state.push("paragraph_close", "p", -1);
  return true;
}

/** The trees of the library's tokens.
 * @param {Token[]} tokens
 * @returns {Tree[]}
 */
function treesOf(tokens) {
  const root = /** @type {Tree[]} */ ([]);
  const open = [root]; // the children of each element that is open
  let links = 0;
  for (const token of tokens.flatMap((one) => one.children && one.type === "inline" ? one.children : [one])) {
    const siblings = open[open.length - 1];
    if (token.type.startsWith("link_")) links += token.nesting;
    if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) add(siblings, leafOf(token, links > 0));
    else open.push(open.length > MAX_OPEN ? siblings : openElement(siblings, token));
  }
  return root;
}

/** Append a text or an element to others; adjacent texts are merged.
 * @param {Tree[]} siblings
 * @param {Tree} tree
 */
function add(siblings, tree) {
  const last = siblings.at(-1);
  if (typeof tree === "string" && typeof last === "string") siblings[siblings.length - 1] = last + tree;
  else if (tree !== "") siblings.push(tree);
}

/** Append the element of a token to others, and return its children.
 * @param {Tree[]} siblings
 * @param {Token} token
 */
function openElement(siblings, token) {
  const node = branchOf(token);
  const isTable = node.name === "table";
  add(siblings, isTable ? branch("div", { class: "table", tabindex: "0" }, node) : node);
  return node.children;
}

/** @param {Token} token */
function branchOf(token) {
  const { type, tag } = token;
  if (type === "heading_open") return branch(`h${Math.min(Number(tag[1]) + 2, 6)}`);
  if (type === "link_open") return link(token.attrGet("href"), token.attrGet("title"));
  if (type === "ordered_list_open") return branch("ol", { start: String(token.attrGet("start") ?? 1) });
  const side = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
  return branch(tag, side ? { class: `to-${side}` } : {});
}

/** The tree of a token without children.
 * @param {Token} token
 * @param {boolean} isInLink
 * @returns {Tree}
 */
function leafOf(token, isInLink) {
  if (token.type === "fence") return code(token.info.trim(), token.content.replace(/\n$/, ""));
  if (token.type === "code_inline") return branch("code", {}, token.content);
  if (token.type === "hr") return branch("hr");
  if (token.type === "softbreak" || token.type === "hardbreak") return "\n";
  if (token.type !== "image") return token.content;
  const source = token.attrGet("src");
  const words = token.content || String(source);
  return isInLink ? words : branch("a", link(source, null).attributes, words);
}

/** @param {string | null} address @param {string | null} title */
function link(address, title) {
  return branch("a", { href: String(address), ...NEW_TAB, ...(title ? { title } : {}) });
}

/** A code block, with its language and a button that copies it.
 * @param {string} language
 * @param {string} text
 */
function code(language, text) {
  const copy = { type: "button", class: "quiet", "aria-label": "Copy this code", "data-copy": "code" };
  const bar = [branch("span", {}, language || "code"), branch("button", copy, "Copy")];
  const lines = branch("pre", { tabindex: "0" }, branch("code", language ? { "data-language": language } : {}, text));
  return branch("div", { class: "code" }, branch("div", { class: "code-bar" }, ...bar), lines);
}

/** @param {string} name @param {Record<string, string>} attributes @param {...Tree} children @returns {Branch} */
function branch(name, attributes = {}, ...children) {
  return { name, attributes, children };
}

/** A paragraph that ends with the head of a table, with the line added that makes it a table; null for any other.
 * @param {string} paragraph
 */
function asTable(paragraph) {
  const lines = paragraph.split(LINE_END);
  if (lines.length > 1 && DELIMITER_START.test(lines[lines.length - 1])) lines.pop();
  const head = lines[lines.length - 1];
  if (!ROW.test(head) || (lines.length > 1 && ROW.test(lines[lines.length - 2]))) return null;
  if (head.trim() === "|") return lines.slice(0, -1).join("\n");
  const columns = head.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).length;
  return columns > MAX_COLUMNS ? null : [...lines, "|-".repeat(columns)].join("\n");
}
