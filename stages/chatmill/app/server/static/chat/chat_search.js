// @ts-check
/** When saved conversations were changed, in words, and where words occur in them. */

import { showBranch, textOf, titleOf } from "./conversation.js";

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

/** Whether each of the words occurs in a conversation: in its title, or in a question or an answer of any branch.
 * @param {Conversation} conversation
 * @param {string} words
 */
export function hasWords(conversation, words) {
  const { exchanges, system } = conversation;
  const text = [titleOf(conversation), system, ...textsOf(exchanges)].join("\n").toLowerCase();
  return split(words).every((word) => text.includes(word));
}

/** Show the branch and the answers of a conversation that have most of the words; returns the number of the exchange
 * that has most of them, or -1. What is shown stays where no other branch or answer has more.
 * @param {Conversation} conversation
 * @param {string} words
 */
export function showWords({ exchanges }, words) {
  const wanted = split(words);
  const branches = [...branchesOf(exchanges)];
  const counts = branches.map((branch) => count(textsOf(branch.exchanges, false), wanted));
  for (const [index, to] of branches[counts.indexOf(Math.max(...counts))].steps) showBranch(exchanges, index, to);
  const missing = wanted.filter((word) => !count(exchanges.flatMap(shownTexts), [word]));
  for (const { answers, versions = [] } of exchanges) {
    for (const [column, all] of versions.entries()) {
      const found = all.map(({ parts }) => count([textOf(parts)], missing));
      const most = Math.max(0, ...found);
      if (most && column in answers) answers[column] = all[found.indexOf(most)];
    }
  }
  const found = exchanges.map((exchange) => count(shownTexts(exchange), wanted));
  return Math.max(0, ...found) ? found.indexOf(Math.max(...found)) : -1;
}

/** Every branch, the shown one first, with the steps that lead to it: [[number of an exchange, branch to show], …].
 * @param {Exchange[]} exchanges
 * @param {[number, number][]} steps
 * @returns {Generator<{ exchanges: Exchange[], steps: [number, number][] }>}
 */
function* branchesOf(exchanges, from = 0, steps = []) {
  yield { exchanges, steps };
  for (let index = from; index < exchanges.length; index += 1) {
    for (const [to, branch] of (exchanges[index].branches ?? []).entries()) {
      if (branch) yield* branchesOf([...exchanges.slice(0, index), ...branch], index + 1, [...steps, [index, to]]);
    }
  }
}

/** The texts of exchanges with all versions of their answers and, unless that is not wanted, all branches.
 * @param {Exchange[]} exchanges
 * @returns {string[]}
 */
function textsOf(exchanges, withBranches = true) {
  return exchanges.flatMap((exchange) => {
    const versions = (exchange.versions ?? []).flat().map(({ parts }) => textOf(parts));
    const branches = withBranches ? (exchange.branches ?? []).flatMap((branch) => textsOf(branch ?? [])) : [];
    return [...shownTexts(exchange), ...versions, ...branches];
  });
}

/** @param {Exchange} exchange */
function shownTexts({ asked, answers }) {
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
