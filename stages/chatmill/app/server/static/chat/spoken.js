// @ts-check
/** What a screen reader says beside the page, and what goes to the clipboard. */

import { byId, element } from "../shared/dom.js";

const node = byId("announcer", HTMLElement);

/** Say something, after what is said already.
 * @param {string} text
 */
export function announce(text) {
  node.append(element("p", {}, text));
}

/** Have nothing said any more. */
export function hush() {
  node.replaceChildren();
}

/** Copy a text, and say so.
 * @param {string} text
 */
export async function copy(text) {
  const copied = navigator.clipboard ? await written(text) : selected(text);
  hush();
  announce(copied ? "Copied." : "The browser does not let this page copy.");
}

/** @param {string} text */
function written(text) {
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}

/** Copy as of old: a page that came without encryption has no clipboard.
 * @param {string} text
 */
function selected(text) {
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "unseen", "aria-label": "Text to copy" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return copied;
}
