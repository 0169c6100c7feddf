// @ts-check
/** The colours of code, found by the library highlight.js.
 *
 *     runsOf("js", "if (a)") → [{ kind: "keyword", text: "if" }, { kind: "", text: " (a)" }]
 *
 * The library's result is HTML, but no text of a model may become HTML: this module reads the tree that the library
 * makes first. Formulas are shown as they are written: KaTeX takes 340 kB, zipped and with its fonts.
 */

import hljs from "../vendor/highlight.min.js";

/** @typedef {import("../vendor/highlight.min.js").Scope} Scope */
/** @typedef {import("./markdown.js").Branch} Branch */
/** @typedef {import("./markdown.js").Tree} Tree */
/** @typedef {{ kind: string, text: string }} Run a text, and the name of its colour; "" for none */

const MAX_LENGTH = 8000; // characters; the time of some languages grows with the square
const SLOW = new Set(["markdown", "md", "mkdown", "mkd"]); // its time grows with the cube

/** The colour of each of the library's scopes, by its first word. */
const KINDS = new Map(
  Object.entries({
    keyword: ["keyword", "meta", "doctag", "selector-tag", "selector-pseudo"],
    string: ["string", "regexp", "char", "link", "addition"],
    number: ["number", "literal", "symbol", "bullet"],
    name: ["title", "section", "name", "tag", "selector-id", "selector-class"],
    type: ["type", "built_in", "attr", "attribute", "property", "variable", "template-variable", "selector-attr"],
    comment: ["comment", "quote", "formula"],
    deletion: ["deletion"],
  }).flatMap(([kind, scopes]) => scopes.map((scope) => [scope, kind])),
);

/** A block of Markdown with colours in its code.
 * @param {Branch} node
 * @returns {Branch}
 */
export function withColours(node) {
  const language = node.attributes["data-language"];
  if (language) return { ...node, children: runsOf(language, String(node.children[0])).map(treeOf) };
  return { ...node, children: node.children.map((child) => (typeof child === "string" ? child : withColours(child))) };
}

/** The runs of one colour in a code; one without colour if its language is unknown or it is long.
 * @param {string} language
 * @param {string} code
 * @returns {Run[]}
 */
export function runsOf(language, code) {
  const name = language.split(/[\s{,]/, 1)[0].toLowerCase();
  if (code.length > MAX_LENGTH || SLOW.has(name) || !hljs.getLanguage(name)) return [{ kind: "", text: code }];
  return flattened(hljs.highlight(code, { language: name, ignoreIllegals: true })._emitter.rootNode);
}

/** The texts of a tree, which may be very deep, each with the colour of its innermost scope.
 * @param {Scope} root
 */
function flattened(root) {
  const runs = /** @type {Run[]} */ ([]);
  const rest = [{ kind: "", node: /** @type {Scope | string} */ (root) }];
  for (let next = rest.pop(); next; next = rest.pop()) {
    const { kind, node } = next;
    const last = runs.at(-1);
    if (typeof node !== "string") {
      const own = node.scope === undefined ? kind : (KINDS.get(node.scope.split(".")[0]) ?? "");
      rest.push(...node.children.map((child) => ({ kind: own, node: child })).reverse());
    } else if (last?.kind === kind) last.text += node;
    else runs.push({ kind, text: node });
  }
  return runs;
}

/** @param {Run} run @returns {Tree} */
function treeOf({ kind, text }) {
  return kind ? { name: "span", attributes: { class: `code-${kind}` }, children: [text] } : text;
}
