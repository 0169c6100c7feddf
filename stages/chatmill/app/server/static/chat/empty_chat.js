// @ts-check
/** The content of a chat before its first message. */

import { nameOf } from "./model_description.js";
import { button, element } from "../shared/dom.js";

const PROMPTS = ["Hello there!", "What can you do?", "What is 48 times 7?", "Tell me a short story."]; // for any model

/** The models' names and some prompts; `ask` is called with the chosen prompt.
 * @param {string[]} models
 * @param {(prompt: string) => unknown} ask
 */
export function emptyChat(models, ask) {
  const items = PROMPTS.map((prompt) => element("li", {}, button(prompt, () => ask(prompt))));
  const heading = element("h2", {}, models.length ? `Chat with ${models.map(nameOf).join(" and ")}` : "Chat");
  const hint = "A small model knows only what it was trained on. Write a message, or begin with one of these:";
  return element("div", { className: "empty-chat" }, heading, element("p", {}, hint), element("ul", {}, ...items));
}
