// @ts-check
/** Markdown as a tree of what is to be shown, made of what the library markdown-it reads.
 *
 *     "a *b*" → [{ start: 0, line: 0, node: { name: "p", attributes: {}, children: ["a ", { name: "em", … }] } }]
 *
 * It is ours because the library writes HTML, and no text of a model may become HTML: of the library's tokens this
 * makes elements from a fixed list, with text inside. HTML stays text; links lead to web and mail addresses alone; an
 * image is a link to it. What depends on text that comes much later is left out (references, underlined headings), so
 * that a text that grows is read on from its last block.
 */

import MarkdownIt from "../vendor/markdown-it.esm.min.mjs";

/** @typedef {import("../vendor/markdown-it.esm.min.mjs").Token} Token */
/** @typedef {import("../vendor/markdown-it.esm.min.mjs").StateBlock} StateBlock */
/** @typedef {{ name: string, attributes: Record<string, string>, children: Tree[] }} Branch an element */
/** @typedef {Branch | string} Tree an element, or text */
/** @typedef {{ start: number, line: number, node: Branch }} Block and where it begins: its character and its line */

const MOST_LEVELS = 16; // of lists (two each) and quotes; what lies deeper is text
const MOST_OPEN = 40; // elements inside of one another; what lies deeper is not marked
const MOST_COLUMNS = 200; // of the head of a table that has not come whole
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const NEW_TAB = { target: "_blank", rel: "noopener noreferrer" };
const LINE_END = /\r\n?|\n/g;
const FENCE_BEGUN = /^((?:[ \t>]|[-*+] |\d{1,9}[.)] )*)(?:`+|~+)[ \t]*$/; // may become code, or its end
const ROW = /^ {0,3}\|/;
const DELIMITER_BEGUN = /^ {0,3}(\|[ \t:|-]*)?$/;

const reader = newReader();

/** The blocks of a text from a position on, where a block begins.
 * @param {string} text
 * @param {number} position
 * @returns {Block[]}
 */
export function blocksOf(text, position = 0) {
  const rest = text.slice(position);
  const starts = [0, ...Array.from(rest.matchAll(LINE_END), ({ index, 0: end }) => index + end.length)];
  const blocks = [];
  let tokens = /** @type {Token[]} */ ([]);
  for (const token of reader.parse(rest, {})) {
    tokens.push(token);
    if (token.level > 0 || token.nesting > 0) continue;
    const line = tokens[0].map?.[0] ?? 0;
    blocks.push({ start: position + starts[line], line, node: /** @type {Branch} */ (treesOf(tokens)[0]) });
    tokens = [];
  }
  return blocks;
}

/** The same of a text that is still growing: what would look otherwise with the next characters is shown as it will be.
 *
 * A line of backticks alone waits for its end, and the head of a table is one before the line under it has come.
 * @param {string} text
 * @param {number} position
 * @returns {Block[]}
 */
export function blocksSoFar(text, position = 0) {
  const end = text.lastIndexOf("\n") + 1;
  const fence = FENCE_BEGUN.exec(text.slice(end));
  const shown = fence ? text.slice(0, end) + fence[1].trimEnd() : text;
  const blocks = blocksOf(shown, position);
  const last = blocks.at(-1);
  const table = last?.node.name === "p" ? asTable(shown.slice(last.start)) : null;
  if (!last || table === null) return blocks;
  const more = blocksOf(shown.slice(0, last.start) + table, last.start);
  return [...blocks.slice(0, -1), ...more.map((block) => ({ ...block, line: block.line + last.line }))];
}

/** How many lines a text has from a position on.
 * @param {string} text
 * @param {number} position
 */
export function countLines(text, position = 0) {
  return text.slice(position).split(LINE_END).length;
}

function newReader() {
  const made = new MarkdownIt({ html: false, linkify: true, typographer: false, maxNesting: 100 });
  made.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  made.disable(["code", "entity", "lheading", "reference"]);
  made.validateLink = (url) => SAFE_LINK.test(url.trim());
  made.block.ruler.before("table", "too_deep", plainWhereTooDeep);
  made.inline.State = class extends made.inline.State {
    /** A star inside a word marks nothing, like an underscore, so that `2*3*4` keeps its stars.
     * @override
     * @param {number} start
     */
    scanDelims(start) {
      return super.scanDelims(start, false);
    }
  };
  return made;
}

/** A rule of the library: a block that lies too deep is a paragraph.
 * @param {StateBlock} state
 * @param {number} begin
 * @param {number} end
 */
function plainWhereTooDeep(state, begin, end) {
  if (state.level < MOST_LEVELS) return false;
  let next = begin + 1;
  while (next < end && (state.sCount[next] < 0 || state.sCount[next] >= state.blkIndent)) next += 1;
  state.line = next;
  state.push("paragraph_open", "p", 1).map = [begin, next];
  const inline = state.push("inline", "", 0);
  Object.assign(inline, { content: state.getLines(begin, next, state.blkIndent, false).trim(), children: [] });
  state.push("paragraph_close", "p", -1);
  return true;
}

/** What tokens are shown as.
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
    else open.push(open.length > MOST_OPEN ? siblings : opened(siblings, token));
  }
  return root;
}

/** Put text or an element after others; texts that adjoin become one.
 * @param {Tree[]} siblings
 * @param {Tree} tree
 */
function add(siblings, tree) {
  const last = siblings.at(-1);
  if (typeof tree === "string" && typeof last === "string") siblings[siblings.length - 1] = last + tree;
  else if (tree !== "") siblings.push(tree);
}

/** Put the element of a token after others; its children.
 * @param {Tree[]} siblings
 * @param {Token} token
 */
function opened(siblings, token) {
  const made = branchOf(token);
  const isTable = made.name === "table";
  add(siblings, isTable ? branch("div", { class: "table", tabindex: "0" }, made) : made);
  return made.children;
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

/** What a token without children is shown as.
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

/** Code as a block, with its language and a button that copies it.
 * @param {string} language
 * @param {string} text
 */
function code(language, text) {
  const copy = { type: "button", class: "quiet", "aria-label": "Copy this code", "data-copy": "code" };
  const bar = [branch("span", {}, language || "code"), branch("button", copy, "Copy")];
  const lines = branch("pre", { tabindex: "0" }, branch("code", {}, text));
  return branch("div", { class: "code" }, branch("div", { class: "code-bar" }, ...bar), lines);
}

/** @param {string} name @param {Record<string, string>} attributes @param {...Tree} children @returns {Branch} */
function branch(name, attributes = {}, ...children) {
  return { name, attributes, children };
}

/** A paragraph that ends with what looks like the head of a table as one with the line that makes it a table.
 * @param {string} paragraph
 */
function asTable(paragraph) {
  const lines = paragraph.split(LINE_END);
  if (lines.length > 1 && DELIMITER_BEGUN.test(lines[lines.length - 1])) lines.pop();
  const head = lines[lines.length - 1];
  if (!ROW.test(head) || (lines.length > 1 && ROW.test(lines[lines.length - 2]))) return null;
  if (head.trim() === "|") return lines.slice(0, -1).join("\n");
  const columns = head.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).length;
  return columns > MOST_COLUMNS ? null : [...lines, "|-".repeat(columns)].join("\n");
}
