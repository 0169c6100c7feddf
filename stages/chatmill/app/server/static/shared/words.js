// @ts-check
/** How the pages write sentences and numbers. */

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
export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
