// @ts-check
/** What the page tells the user: a notice above the chat, and announcements for screen readers. */

import { button, byId, element, withCode } from "../shared/dom.js";

/** Show a text, followed by the nodes `more`, until it is closed.
 * @param {string} text
 * @param {...Node} more
 */
export function showNotice(text, ...more) {
  const node = byId("notice", HTMLElement);
  node.classList.remove("bad");
  const close = button("Close", hideNotice, { className: "quiet" });
  node.replaceChildren(element("span", {}, ...withCode(text)), ...more, close);
  node.hidden = false;
}

/** Show the text of a problem, which looks like one, followed by the nodes `more`, until it is closed.
 * @param {string} text
 * @param {...Node} more
 */
export function showProblem(text, ...more) {
  showNotice(text, ...more);
  byId("notice", HTMLElement).classList.add("bad");
}

export function hideNotice() {
  byId("notice", HTMLElement).hidden = true;
}

/** Have screen readers say a text, after those that they were given since `clearAnnouncements`.
 * @param {string} text
 */
export function announce(text) {
  byId("announcer", HTMLElement).append(element("p", {}, text));
}

export function clearAnnouncements() {
  byId("announcer", HTMLElement).replaceChildren();
}

/** Copy a text to the clipboard, and announce it.
 * @param {string} text
 */
export async function copy(text) {
  clearAnnouncements();
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
  } catch {
    showProblem("The browser does not let this page copy."); // a page without encryption may not
  }
}
