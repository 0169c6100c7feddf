// @ts-check
/** The statistics of an answer (speed, tokens, share of the context), and warnings about how it ended. */

import { pluralize, sentence } from "../shared/text_format.js";

/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ value: string, unit: string, about: string }} Statistic */

/** @type {Record<string, string>} */
const WARNINGS = {
  length: "The answer was cut off: it reached its maximum of tokens, or the end of the context.",
  stopped: "Stopped.",
};

/** The statistics of an answer; none before the server has sent its timings.
 * @param {Timings | null} timings
 * @param {number} count how many tokens it has
 * @returns {Statistic[]}
 */
export function statsOf(timings, count) {
  if (!timings) return [];
  const { prompt_tokens: prompt, completion_tokens: completion, context } = timings;
  const share = `${(prompt + completion).toLocaleString("en")} of ${context.toLocaleString("en")}`;
  const about = "tokens of the prompt and the answer, of the model's context";
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
export function warningsOf(finish, timings) {
  const dropped = timings?.dropped_messages ?? 0;
  const left = `The context was too short: the oldest ${pluralize(dropped, "message")} left out.`;
  return [...(finish && Object.hasOwn(WARNINGS, finish) ? [WARNINGS[finish]] : []), ...(dropped ? [left] : [])];
}

/** An error as a sentence, with the time to wait if the server is busy.
 * @param {{ message: string, status: number, retryAfter: number | null }} error
 */
export function problemSentence({ message, status, retryAfter }) {
  const isBusy = status === 429 || status === 503;
  const wait = isBusy && retryAfter ? ` Try again in ${pluralize(retryAfter, "second")}.` : "";
  return sentence(message) + wait;
}

/** 0.4, 9.5, 12, 1,234; a dash if there is no rate, as for one token.
 * @param {number | null} number
 */
export function rounded(number) {
  if (!number) return "–";
  return number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
}
