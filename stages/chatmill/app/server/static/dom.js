/** Nodes of the page, made without any HTML: what they show is text, whoever wrote it. */

/** An element with its properties and attributes, and its children: nodes or texts. */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** A button, and what it does. */
export function button(label, action, properties = {}) {
  return element("button", { type: "button", onclick: action, ...properties }, label);
}

/** What the server says, as a sentence of its own. */
export function sentence(message) {
  return `${message[0].toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

/** 1 token, 2 tokens. */
export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
