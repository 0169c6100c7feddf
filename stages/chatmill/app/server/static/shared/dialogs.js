// @ts-check
/** Modal dialogs; the browser keeps the focus inside them. */

import { button, element } from "./dom.js";
import { sentence } from "./text_format.js";

const KEYS = [
  ["Enter", "sends the message"],
  ["Shift+Enter", "starts a new line"],
  ["Esc", "stops the answer; closes an edit, a panel or a dialog"],
  ["↑", "in an empty message: edits the last message"],
  ["Tab", "moves to the next control"],
  ["← → ↑ ↓", "move from token to token in the tokens of an answer"],
];

/** Ask the user for a text in place of another; null if cancelled.
 * @param {string} title
 * @param {string} label
 * @param {string} before
 */
export async function askForText(title, label, before) {
  const field = element("input", { id: "text", value: before, autocomplete: "off", required: true, maxLength: 200 });
  const cancel = button("Cancel", () => dialog.close(""));
  const go = element("button", { type: "submit", className: "first" }, "Save");
  const choices = element("div", { className: "choices" }, cancel, go);
  const form = element("form", {}, element("label", { htmlFor: "text" }, label), field, choices);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(field.value);
  });
  const dialog = openDialog(title, form);
  field.select();
  return (await dialogResult(dialog)) || null;
}

/** Let the user choose one of several actions, each with a label and a hint; null if cancelled.
 * @param {string} title
 * @param {[name: string, label: string, hint: string][]} actions
 */
export async function askForChoice(title, actions) {
  const rows = actions.map(([name, label, hint]) => {
    const choose = button(label, () => dialog.close(name), { "aria-describedby": `about-${name}` });
    return element("li", {}, choose, element("p", { className: "hint", id: `about-${name}` }, hint));
  });
  const cancel = element("div", { className: "choices" }, button("Cancel", () => dialog.close("")));
  const dialog = openDialog(title, element("ul", { className: "actions-list" }, ...rows), cancel);
  return (await dialogResult(dialog)) || null;
}

/** Ask the user for the server's API key; null if cancelled.
 * @param {string} message
 */
export async function promptForKey(message) {
  const field = element("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const cancel = button("Cancel", () => dialog.close(""));
  const go = element("button", { type: "submit", className: "first" }, "Continue");
  const form = element(
    "form",
    {},
    element("p", {}, sentence(message)),
    element("label", { htmlFor: "key" }, "Key"),
    field,
    element("p", { className: "hint" }, "It is stored until this tab is closed."),
    element("div", { className: "choices" }, cancel, go),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(field.value);
  });
  const dialog = openDialog("This server needs an API key", form);
  field.focus();
  return (await dialogResult(dialog)) || null;
}

/** Show the keyboard shortcuts. */
export async function showKeys() {
  const rows = KEYS.map(([key, does]) =>
    element("tr", {}, element("th", { scope: "row" }, element("kbd", {}, key)), element("td", {}, does)),
  );
  const done = button("Close", () => dialog.close(""));
  const table = element("table", {}, element("tbody", {}, ...rows));
  const dialog = openDialog("Keyboard", table, element("div", { className: "choices" }, done));
  done.focus();
  await dialogResult(dialog);
}

/** @param {string} title @param {...Node} children */
function openDialog(title, ...children) {
  const heading = element("h2", { id: "dialog-title" }, title);
  const dialog = element("dialog", { "aria-labelledby": heading.id }, heading, ...children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** @param {HTMLDialogElement} dialog @returns {Promise<string>} */
function dialogResult(dialog) {
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}
