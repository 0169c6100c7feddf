// @ts-check
/** Markdown on the page, as nodes that are changed in place while a text grows. */

import { withColours } from "./highlighting.js";
import { blocksOf, blocksSoFar, countLines } from "./markdown.js";

/** @typedef {import("./markdown.js").Branch} Branch */
/** @typedef {import("./markdown.js").Tree} Tree */

/** A growing text as children of `node`; complete blocks are built once. */
export class MarkdownView {
  #text = "";
  #isComplete = true;
  #closed = 0; // the position after which blocks may still change
  #complete = 0; // the number of nodes before those of the open blocks
  /** @type {Tree[]} */
  #open = []; // the trees of the open blocks

  /** @param {Element} node */
  constructor(node) {
    this.node = node;
  }

  /** How many characters are parsed again with the next ones; code is only lengthened. */
  get unsettled() {
    const [first] = this.#open;
    const isCode = typeof first === "object" && first.attributes.class === "code";
    return isCode ? 0 : this.#text.length - this.#closed;
  }

  /** Show a text that starts with the text shown before; `isComplete` is whether it will not grow further.
   * @param {string} text
   */
  update(text, isComplete = true) {
    if (text === this.#text && isComplete === this.#isComplete) return;
    const blocks = (isComplete ? blocksOf : blocksSoFar)(text, this.#closed);
    const coloured = isComplete ? blocks.length : blocks.length - 1; // code that still grows is only lengthened
    const trees = blocks.map(({ node }, index) => (index < coloured ? withColours(node) : node));
    patch(this.node, this.#open, trees, this.#complete);
    const last = blocks[blocks.length - 1];
    const isYoung = last && last.line >= countLines(text, this.#closed) - 2; // it may become a part of the block before
    const settled = Math.max(blocks.length - (isYoung ? 2 : 1), 0);
    this.#complete += settled;
    this.#open = trees.slice(settled);
    this.#closed = blocks[settled]?.start ?? this.#closed;
    this.#text = text;
    this.#isComplete = isComplete;
  }
}

/** Show a complete text in a node.
 * @param {string} text
 * @param {Element} node
 */
export function render(text, node) {
  for (const block of blocksOf(text)) node.append(build(withColours(block.node)));
}

/** Change the children of a node, from `first` on, from showing `before` to showing `after`.
 * @param {Node} node
 * @param {Tree[]} before
 * @param {Tree[]} after
 */
function patch(node, before, after, first = 0) {
  for (const [index, tree] of after.entries()) {
    const child = node.childNodes[first + index];
    if (index >= before.length) node.appendChild(build(tree));
    else if (!adapt(child, before[index], tree)) node.replaceChild(build(tree), child);
  }
  for (let extra = before.length - after.length; extra > 0; extra -= 1) node.lastChild?.remove();
}

/** Change a node from showing `before` to showing `after`; false if it must be replaced.
 * @param {Node} node
 * @param {Tree} before
 * @param {Tree} after
 */
function adapt(node, before, after) {
  if (typeof before === "string" || typeof after === "string") {
    if (typeof before !== typeof after) return false;
    if (after !== before) write(/** @type {Text} */ (node), String(after));
    return true;
  }
  if (before.name !== after.name || !isSame(before.attributes, after.attributes)) return false;
  patch(node, before.children, after.children);
  return true;
}

/** @param {Record<string, string>} one @param {Record<string, string>} other */
function isSame(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}

/** @param {Text} node @param {string} text */
function write(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/** @param {Tree} tree @returns {Node} */
function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const node = document.createElement(tree.name);
  for (const [name, value] of Object.entries(tree.attributes)) node.setAttribute(name, value);
  node.append(...tree.children.map(build));
  return node;
}
