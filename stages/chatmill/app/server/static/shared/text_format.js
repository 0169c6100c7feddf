// @ts-check
/** Sentences and numbers as the pages show them. */

/** A message as a sentence: "no model" → "No model."
 * @param {string} message
 */
export function sentence(message) {
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

/** 1 token, 2 tokens.
 * @param {number} number
 * @param {string} noun
 */
export function pluralize(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
