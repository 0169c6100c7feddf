// @ts-check
/** Conversations as Markdown. */

import { hasText, titleOf } from "./conversation.js";

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("./conversation.js").Conversation} Conversation */

/** Conversations with their first model as Markdown, one after the other.
 * @param {Conversation[]} conversations
 */
export function toMarkdown(conversations) {
  return conversations.map(markdownOfOne).join("\n");
}

/** A heading for each turn; calls of the calculator are code.
 * @param {Conversation} conversation
 */
function markdownOfOne(conversation) {
  const turns = conversation.exchanges.flatMap(({ asked, answers }) => [
    `## You\n\n${asked.trim()}`,
    ...(hasText(answers[0]) ? [`## ${answers[0].model ?? "Answer"}\n\n${markdownOfParts(answers[0].parts)}`] : []),
  ]);
  const system = conversation.system.trim();
  const prompt = system ? [`> ${system.replaceAll("\n", "\n> ")}`] : [];
  return [`# ${titleOf(conversation)}`, ...prompt, ...turns].join("\n\n") + "\n";
}

/** @param {Part[]} parts */
function markdownOfParts(parts) {
  return parts
    .map(({ kind, text }) => (kind === "text" ? text : `\`${text}\` ${kind === "call" ? "= " : ""}`))
    .join("")
    .trim();
}
