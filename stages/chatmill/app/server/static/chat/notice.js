// @ts-check
/** The line above the chat in which the page tells what happened. */

import { button, byId, element } from "../shared/dom.js";

const node = byId("notice", HTMLElement);

/** Show a text until it is closed; `more` are nodes after it.
 * @param {string} text
 * @param {...Node} more
 */
export function tell(text, ...more) {
  node.replaceChildren(element("span", {}, text), ...more, button("Close", untell, { className: "quiet" }));
  node.hidden = false;
}

/** Take away what is told. */
export function untell() {
  node.hidden = true;
  node.replaceChildren();
}
