// @ts-check
/** Markdown as a tree of elements, made from the tokens of the library markdown-it, and as nodes while a text grows.
 *
 *     "a *b*" → [{ start: 0, node: { name: "p", attributes: {}, children: ["a ", { name: "em", … }] } }]
 *
 * The library itself writes HTML, but no text of a model may become HTML. This module makes elements of a fixed list
 * from the library's tokens, with text inside. HTML stays text, links lead only to web and mail addresses, and an image
 * becomes a link. References and underlined headings are not supported, because they depend on text that comes later:
 * without them, a growing text is parsed again from its last blocks only.
 */

import MarkdownIt from "../vendor/markdown-it.esm.min.mjs";

/** @typedef {import("../vendor/markdown-it.esm.min.mjs").Token} Token */
/** @typedef {{ name: string, attributes: Record<string, string>, children: Tree[] }} Branch an element */
/** @typedef {Branch | string} Tree an element, or text */
/** @typedef {{ start: number, node: Branch }} Block an element, and the character where it starts */

const MAX_NESTED = 40; // lists (two levels each), quotes and marks inside of one another; deeper marks are left out
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const NEW_TAB = { target: "_blank", rel: "noopener noreferrer" };
const LINE_END = /\r\n?|\n/g;

const parser = newParser();

/** A growing text as children of `node`; all but its last two blocks are built once. */
export class MarkdownView {
  #closed = 0; // the position after which blocks may still change
  #complete = 0; // the number of nodes before those of the open blocks
  /** @type {Tree[]} */
  #open = []; // the trees of the open blocks

  /** @param {Element} node */
  constructor(node) {
    this.node = node;
  }

  /** Show a text that starts with the text shown before.
   * @param {string} text
   */
  update(text) {
    const blocks = blocksOf(text, this.#closed);
    const trees = blocks.map(({ node }) => node);
    patch(this.node, this.#open, trees, this.#complete);
    const settled = Math.max(blocks.length - 2, 0); // the last may become a part of the one before
    this.#complete += settled;
    this.#open = trees.slice(settled);
    this.#closed = blocks[settled]?.start ?? this.#closed;
  }
}

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
    blocks.push({ start: position + starts[line], node: /** @type {Branch} */ (treesOf(tokens)[0]) });
    tokens = [];
  }
  return blocks;
}

function newParser() {
  const parser = new MarkdownIt({ html: false, linkify: true, typographer: false, maxNesting: MAX_NESTED });
  parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  parser.disable(["code", "entity", "lheading", "reference"]);
  parser.validateLink = (url) => SAFE_LINK.test(url.trim());
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

/** The trees of the library's tokens.
 * @param {Token[]} tokens
 * @returns {Tree[]}
 */
function treesOf(tokens) {
  const root = /** @type {Tree[]} */ ([]);
  const open = [root]; // the children of each element that is open
  let links = 0;
  for (const token of tokens.flatMap((one) => (one.children && one.type === "inline" ? one.children : [one]))) {
    const siblings = open[open.length - 1];
    if (token.type.startsWith("link_")) links += token.nesting;
    if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) add(siblings, leafOf(token, links > 0));
    else open.push(open.length > MAX_NESTED ? siblings : openElement(siblings, token));
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
  if (type === "heading_open") return branch(`h${Math.min(Number(tag[1]) + 2, 6)}`); // below those of the page
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
  const lines = branch("pre", { tabindex: "0" }, branch("code", {}, text));
  return branch("div", { class: "code" }, branch("div", { class: "code-bar" }, ...bar), lines);
}

/** @param {string} name @param {Record<string, string>} attributes @param {...Tree} children @returns {Branch} */
function branch(name, attributes = {}, ...children) {
  return { name, attributes, children };
}

/** Change the children of a node, from `first` on, from showing `before` to showing `after`. What is the same stays,
 * with its focus, its selection and how far it is scrolled.
 * @param {Node} node
 * @param {Tree[]} before
 * @param {Tree[]} after
 */
function patch(node, before, after, first = 0) {
  for (const [index, tree] of after.entries()) {
    const child = node.childNodes[first + index];
    const old = before[index];
    if (old === tree) continue;
    if (old === undefined) node.appendChild(build(tree));
    else if (typeof tree === "string" || typeof old === "string" || !isSameElement(old, tree)) {
      if (child instanceof Text && typeof tree === "string" && tree.startsWith(child.data)) {
        child.appendData(tree.slice(child.data.length));
      } else child.replaceWith(build(tree));
    } else patch(child, old.children, tree.children);
  }
  while (node.childNodes.length > first + after.length) node.lastChild?.remove();
}

/** @param {Branch} one @param {Branch} other */
function isSameElement(one, other) {
  return one.name === other.name && JSON.stringify(one.attributes) === JSON.stringify(other.attributes);
}

/** @param {Tree} tree @returns {ChildNode} */
function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const node = document.createElement(tree.name);
  for (const [name, value] of Object.entries(tree.attributes)) node.setAttribute(name, value);
  node.append(...tree.children.map(build));
  return node;
}
