// @ts-check
/** The content of a chat before its first message. */

import { nameOf, promptsOf } from "./model_description.js";
import { button, element } from "../shared/dom.js";

const SHOWN = 6; // prompts; the others are shown on demand
const PROMPTS = ["Hello there!", "What can you do?", "What is 48 times 7?", "Tell me a short story."]; // for any model

/** The models' names and prompts that they were trained to answer; `ask` is called with the chosen prompt.
 * @param {string[]} models
 * @param {(prompt: string) => unknown} ask
 */
export function emptyChat(models, ask) {
  const own = promptsOf(models);
  const items = (own.length ? own : PROMPTS).map((prompt) => element("li", {}, button(prompt, () => ask(prompt))));
  const heading = element("h2", {}, models.length ? `Chat with ${models.map(nameOf).join(" and ")}` : "Chat");
  const hint = "A small model knows only what it was trained on. Write a message, or begin with one of these:";
  const list = element("ul", {}, ...items.slice(0, SHOWN));
  const node = element("div", { className: "empty-chat" }, heading, element("p", {}, hint), list);
  if (items.length > SHOWN) node.append(moreButton(list, items.slice(SHOWN)));
  return node;
}

/** A button that appends items to a list, and moves the focus to the first of them.
 * @param {HTMLElement} list
 * @param {HTMLElement[]} items
 */
function moreButton(list, items) {
  const more = button("What else can I ask?", () => {
    list.append(...items);
    more.remove();
    items[0].querySelector("button")?.focus();
  });
  more.className = "quiet";
  return more;
}
