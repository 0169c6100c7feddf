// @ts-check
/** Nodes of the page, made without any HTML: what they show is text, whoever wrote it. */

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

/** A button, and what it does.
 * @param {string} label
 * @param {((event: Event) => unknown) | null} action
 * @param {Record<string, any>} properties
 */
export function button(label, action, properties = {}) {
  return element("button", { type: "button", onclick: action, ...properties }, label);
}

/** The element of the page that has an id. Throws where the page has none of that kind.
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
