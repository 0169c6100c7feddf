// @ts-check
/** Nodes and sentences of the pages. Nodes are made without HTML, so that every text is shown as text. */

/** An element with its properties and attributes, and its children: nodes or texts.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, any>} properties
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) Object.assign(node, { [key]: value });
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** The nodes of a message, in which what is between backticks is code.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function withCode(text) {
  return text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

/** @param {string} label @param {((event: Event) => unknown) | null} action @param {Record<string, any>} properties */
export function button(label, action, properties = {}) {
  return element("button", { type: "button", onclick: action, ...properties }, label);
}

/** The element with an id. Throws if the page has none of that type.
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 */
export function byId(id, kind) {
  const node = document.getElementById(id);
  if (node instanceof kind) return node;
  throw new TypeError(`the page has no ${kind.name} with the id ${id}`);
}

/** A message as a sentence: "no model" → "No model."
 * @param {string} message
 */
export function sentence(message) {
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

/** 1 token, 2 tokens.
 * @param {number} number
 * @param {string} noun
 */
export function pluralize(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
