// @ts-check
/** The notice above the chat. */

import { button, byId, element, withCode } from "../shared/dom.js";

const node = byId("notice", HTMLElement);

/** Show a text, followed by the nodes `more`, until it is closed.
 * @param {string} text
 * @param {...Node} more
 */
export function showNotice(text, ...more) {
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
  node.classList.add("bad");
}

/** Hide the notice. */
export function hideNotice() {
  node.hidden = true;
  node.replaceChildren();
}
