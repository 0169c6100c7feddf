// @ts-check
/** Questions that want an answer before anything else; the browser keeps the focus inside of them. */

import { button, element } from "./dom.js";
import { sentence } from "./words.js";

const KEYS = [
  ["Enter", "sends the message"],
  ["Shift+Enter", "begins a line"],
  ["Esc", "stops the answer; leaves an edit, a panel, a question"],
  ["↑", "in an empty message: edits the one before"],
  ["Tab", "goes from control to control"],
  ["← → ↑ ↓", "go from token to token in the tokens of an answer"],
];

/** Ask whether to do what cannot be undone; true if so.
 * @param {string} title
 * @param {string} text
 * @param {string} action
 */
export async function confirmed(title, text, action) {
  const cancel = button("Cancel", () => dialog.close(""));
  const go = button(action, () => dialog.close("yes"), { className: "danger" });
  const dialog = opened(title, element("p", {}, text), element("div", { className: "choices" }, cancel, go));
  cancel.focus();
  return (await answered(dialog)) === "yes";
}

/** Ask for the server's key; null if there is none to give.
 * @param {string} message
 */
export async function askedKey(message) {
  const field = element("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const cancel = button("Cancel", () => dialog.close(""));
  const go = element("button", { type: "submit", className: "first" }, "Go on");
  const form = element(
    "form",
    {},
    element("p", {}, sentence(message)),
    element("label", { htmlFor: "key" }, "Key"),
    field,
    element("p", { className: "hint" }, "It is kept until this tab is closed."),
    element("div", { className: "choices" }, cancel, go),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(field.value);
  });
  const dialog = opened("This server wants a key", form);
  field.focus();
  return (await answered(dialog)) || null;
}

/** Show which keys do what. */
export async function showKeys() {
  const rows = KEYS.map(([key, does]) =>
    element("tr", {}, element("th", { scope: "row" }, element("kbd", {}, key)), element("td", {}, does)),
  );
  const done = button("Close", () => dialog.close(""));
  const table = element("table", {}, element("tbody", {}, ...rows));
  const dialog = opened("Keyboard", table, element("div", { className: "choices" }, done));
  done.focus();
  await answered(dialog);
}

/** @param {string} title @param {...Node} children */
function opened(title, ...children) {
  const heading = element("h2", { id: "dialog-title" }, title);
  const dialog = element("dialog", { "aria-labelledby": heading.id }, heading, ...children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** @param {HTMLDialogElement} dialog @returns {Promise<string>} */
function answered(dialog) {
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}
