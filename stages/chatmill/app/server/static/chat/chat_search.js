// @ts-check
/** When saved conversations were changed, in words, and where words occur in them. */

import { textOf, titleOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Exchange} Exchange */

const DAY = 86_400_000; // milliseconds

/** The period of a time: "Today", "Yesterday", "Last 7 days", "Last 30 days", or a month, such as "March 2026".
 * @param {number} time
 * @param {number} now
 */
export function periodOf(time, now) {
  const today = new Date(now).setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= new Date(today - DAY / 2).setHours(0, 0, 0, 0)) return "Yesterday"; // a day may have 23 or 25 hours
  if (time >= today - 7 * DAY) return "Last 7 days";
  if (time >= today - 30 * DAY) return "Last 30 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

/** Whether each of the words occurs in a conversation: in its title, or in a question or an answer.
 * @param {Conversation} conversation
 * @param {string} words
 */
export function hasWords(conversation, words) {
  const { exchanges, system } = conversation;
  const text = [titleOf(conversation), system, ...exchanges.flatMap(textsOf)].join("\n").toLowerCase();
  return split(words).every((word) => text.includes(word));
}

/** The number of the exchange that has most of the words, or -1.
 * @param {Conversation} conversation
 * @param {string} words
 */
export function findWords({ exchanges }, words) {
  const found = exchanges.map((exchange) => count(textsOf(exchange), split(words)));
  return Math.max(0, ...found) ? found.indexOf(Math.max(...found)) : -1;
}

/** @param {Exchange} exchange */
function textsOf({ asked, answers }) {
  return [asked, ...answers.map(({ parts }) => textOf(parts))];
}

/** How many of the words occur in texts.
 * @param {string[]} texts
 * @param {string[]} words
 */
function count(texts, words) {
  const text = texts.join("\n").toLowerCase();
  return words.filter((word) => text.includes(word)).length;
}

/** @param {string} words */
function split(words) {
  return words.toLowerCase().split(/\s+/).filter(Boolean);
}
