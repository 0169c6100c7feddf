// @ts-check
/** When saved conversations were changed, in words, and whether words occur in them. */

import { textOf, titleOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

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

/** Whether each of the words occurs in a conversation, in its title, a question or an answer.
 * @param {Conversation} conversation
 * @param {string} words
 */
export function hasWords(conversation, words) {
  const { exchanges, system } = conversation;
  const texts = exchanges.flatMap(({ asked, answers }) => [asked, ...answers.map(({ parts }) => textOf(parts))]);
  const text = [titleOf(conversation), system, ...texts].join("\n").toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
