// @ts-check
/** Conversations as files: training data, Markdown, and JSON with everything, which is imported as it was exported.
 *
 *     {"format": "chatmill chats", "version": 1, "chats": [{"id": …, "updated": …, "exchanges": […], …}]}
 */

import { hasText, titleOf } from "./conversation.js";
import { checkedConversation } from "./stored_checks.js";
import { checkCount, FileError, readLines, toLine } from "./training_lines.js";

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("./conversation.js").Conversation} Conversation */

const FORMAT = "chatmill chats";
const VERSION = 1;
const BEGINNING = new RegExp(`^\\s*{\\s*"format":\\s*"${FORMAT}"`);

/** Conversations with all that the page stores of them, as JSON that `readFile` reads.
 * @param {Conversation[]} conversations
 */
export function toJson(conversations) {
  const chats = conversations.map(({ revision: _, ...chat }) => JSON.stringify(chat));
  return `{"format": "${FORMAT}", "version": ${VERSION}, "chats": [\n${chats.join(",\n")}\n]}\n`;
}

/** Conversations with their first model as Markdown, one after the other.
 * @param {Conversation[]} conversations
 */
export function toMarkdown(conversations) {
  return conversations.map(markdownOfOne).join("\n");
}

/** Whether a text is JSON that `toJson` wrote.
 * @param {string} text
 */
export function isExported(text) {
  return BEGINNING.test(text);
}

/** The conversations of a file: JSON that `toJson` wrote, or lines of training data, whose date is that of the file.
 * Throws FileError with the place of what is wrong.
 * @param {string} text
 * @param {{ name: string, lastModified: number }} file
 * @param {string[]} models that continue conversations of lines
 */
export function readFile(text, { name, lastModified }, models) {
  if (isExported(text)) return readJson(text, name);
  const conversations = readLines(text, name, models);
  conversations.forEach((one, index) => (one.updated = lastModified - index)); // listed in the order of the file
  return conversations;
}

/** The conversations that are not among others, and among those before them. What is there with the same id, as old or
 * changed since, or with the same messages, is a double.
 * @param {Conversation[]} conversations
 * @param {Conversation[]} others
 */
export function withoutDoubles(conversations, others) {
  const known = new Set(others.flatMap((one) => [toLine(one, 0), toLine(one, 1)]));
  const dates = new Map(others.map(({ id, updated }) => [id, updated]));
  return conversations.filter((one) => {
    const line = toLine(one, 0);
    const isNew = !(line && known.has(line)) && !((dates.get(one.id) ?? -1) >= one.updated);
    known.add(line);
    dates.set(one.id, one.updated);
    return isNew;
  });
}

/** @param {string} text @param {string} name @returns {Conversation[]} */
function readJson(text, name) {
  try {
    const { version, chats } = JSON.parse(text);
    if (version !== VERSION) throw new FileError(`version ${version}: this page reads version ${VERSION}`);
    if (!Array.isArray(chats) || !chats.length) throw new FileError("there is no chat in the file");
    checkCount(chats.length);
    return chats.map((chat, index) => checkedConversation(chat, `chats[${index}]`));
  } catch (error) {
    if (!(error instanceof FileError || error instanceof SyntaxError)) throw error;
    throw new FileError(`${name}: ${error.message}`);
  }
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
