// @ts-check
/** Announcements for screen readers (an ARIA live region), and copying to the clipboard. */

import { byId, element } from "../shared/dom.js";

const node = byId("announcer", HTMLElement);

/** Announce a text, after those that were announced already.
 * @param {string} text
 */
export function announce(text) {
  node.append(element("p", {}, text));
}

/** Remove all announcements. */
export function clearAnnouncements() {
  node.replaceChildren();
}

/** Copy a text, and announce it.
 * @param {string} text
 */
export async function copy(text) {
  const copied = navigator.clipboard ? await copyByClipboard(text) : copyBySelection(text);
  clearAnnouncements();
  announce(copied ? "Copied." : "The browser does not let this page copy.");
}

/** @param {string} text */
function copyByClipboard(text) {
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}

/** Copy by a selected field, as a page without encryption has no `navigator.clipboard`.
 * @param {string} text
 */
function copyBySelection(text) {
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "unseen", "aria-label": "Text to copy" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return copied;
}
