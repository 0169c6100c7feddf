// @ts-check
/** Markdown on the page: nodes that are changed in place while a text grows. */

import { blocksOf, blocksSoFar, countLines } from "./markdown.js";

/** @typedef {import("./markdown.js").Branch} Branch */
/** @typedef {import("./markdown.js").Tree} Tree */

/** A text that grows, as nodes inside of `node`: blocks that are complete are made once. */
export class MarkdownView {
  #text = "";
  #isWhole = true;
  #closed = 0; // where the blocks begin that may still change
  #complete = 0; // how many nodes stand before theirs
  /** @type {Tree[]} */
  #open = []; // what their nodes show

  /** @param {Element} node */
  constructor(node) {
    this.node = node;
  }

  /** How many characters at the end are read anew with whatever comes; code is only lengthened. */
  get unsettled() {
    const [first] = this.#open;
    const isCode = typeof first === "object" && first.attributes.class === "code";
    return isCode ? 0 : this.#text.length - this.#closed;
  }

  /** Show a text that begins with the one that was shown before; `isWhole` is whether nothing more is awaited.
   * @param {string} text
   */
  update(text, isWhole = true) {
    if (text === this.#text && isWhole === this.#isWhole) return;
    const blocks = (isWhole ? blocksOf : blocksSoFar)(text, this.#closed);
    const trees = blocks.map(({ node }) => node);
    patch(this.node, this.#open, trees, this.#complete);
    const last = blocks[blocks.length - 1];
    const isYoung = last && last.line >= countLines(text, this.#closed) - 2; // it may turn out to belong to that before
    const settled = Math.max(blocks.length - (isYoung ? 2 : 1), 0);
    this.#complete += settled;
    this.#open = trees.slice(settled);
    this.#closed = blocks[settled]?.start ?? this.#closed;
    this.#text = text;
    this.#isWhole = isWhole;
  }
}

/** Put a whole text into a node.
 * @param {string} text
 * @param {Element} node
 */
export function render(text, node) {
  for (const block of blocksOf(text)) node.append(build(block.node));
}

/** Have the last children of a node, from `first` on, show `after` in place of `before`.
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

/** Have a node show `after` in place of `before`; whether it is of the kind that can.
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
