// @ts-check
/** What is told under an answer: how fast it came, how much of the context it takes, and how it ended. */

import { counted, sentence } from "../shared/words.js";

/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ value: string, unit: string, about: string }} Figure */

/** @type {Record<string, string>} */
const NOTES = {
  length: "It was cut off where it reached its most tokens, or the end of the context.",
  stopped: "Stopped.",
};

/** The figures of an answer; none before the server has told its timings.
 * @param {Timings | null} timings
 * @param {number} count how many tokens it has
 * @returns {Figure[]}
 */
export function figuresOf(timings, count) {
  if (!timings) return [];
  const { prompt_tokens: prompt, completion_tokens: completion, context } = timings;
  const share = `${(prompt + completion).toLocaleString("en")} of ${context.toLocaleString("en")}`;
  const about = "tokens of the prompt and the answer, of all that the model reads";
  return [
    { value: rounded(timings.tokens_per_second), unit: "tokens/s", about: "after the first token" },
    { value: rounded(timings.first_token_ms), unit: "ms to the first token", about: "from the request, at the server" },
    { value: count.toLocaleString("en"), unit: "tokens", about: "of the answer" },
    { value: share, unit: "tokens of context", about },
  ];
}

/** Sentences about how an answer ended and what was left out of its prompt.
 * @param {string | null} finish
 * @param {Timings | null} timings
 * @returns {string[]}
 */
export function notesOf(finish, timings) {
  const dropped = timings?.dropped_messages ?? 0;
  const left = `The context was too short: the oldest ${counted(dropped, "message")} left out.`;
  return [...(finish && Object.hasOwn(NOTES, finish) ? [NOTES[finish]] : []), ...(dropped ? [left] : [])];
}

/** What went wrong, as a sentence, with the time to wait where the server is busy.
 * @param {{ message: string, status: number, retryAfter: number | null }} error
 */
export function problemSentence({ message, status, retryAfter }) {
  const isBusy = status === 429 || status === 503;
  const wait = isBusy && retryAfter ? ` Try again in ${counted(retryAfter, "second")}.` : "";
  return sentence(message) + wait;
}

/** 0.4, 9.5, 12, 1,234; a dash where there is no rate, as of one token.
 * @param {number | null} number
 */
export function rounded(number) {
  if (!number) return "–";
  return number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
}
