// @ts-check
/** The content of a chat before its first message. */

import { nameOf } from "./model_description.js";
import { button, element } from "../shared/dom.js";

const PROMPTS = [
  "Hello there!",
  "What is 48 times 7?",
  "I'd love a story about Mila and a fox.",
  "Sort these numbers from smallest to largest: 81, 16, 50",
  "Which one is bigger, 62 or 26?",
  "Could you spell garden for me?",
];

/** The models' names and example prompts; `ask` is called with the chosen prompt.
 * @param {string[]} models
 * @param {(prompt: string) => unknown} ask
 */
export function emptyChat(models, ask) {
  const prompts = PROMPTS.map((prompt) => element("li", {}, button(prompt, () => ask(prompt))));
  const heading = element("h2", {}, models.length ? `Chat with ${models.map(nameOf).join(" and ")}` : "Chat");
  const hint = "A small model knows only what it was trained on. Write a message, or begin with one of these:";
  return element("div", { className: "empty-chat" }, heading, element("p", {}, hint), element("ul", {}, ...prompts));
}
