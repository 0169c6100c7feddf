// @ts-check
/** The settings of sampling and of an answer's end, and the parameters of a request that they become. */

/** @typedef {{ name: string, label: string, min: number, max?: number, step: number, hint: string }} Control */
/** @typedef {{ [name: string]: number | string | undefined, stop?: string }} Changed the settings that differ from the defaults */

/** @type {Control[]} */
export const CONTROLS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.01, hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: 0.001, hint: "only the likeliest with this sum" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "only this many of the likeliest; 0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.001, hint: "least probability, relative to the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.01, hint: "1: none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "empty: random" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "of an answer" },
];

/** The values that a control takes: "a number from 0 to 100", "a whole number from 1 on".
 * @param {Control} control
 */
export function rangeOf({ min, max, step }) {
  const kind = step === 1 ? "a whole number" : "a number";
  return `${kind} from ${min} ${max === undefined ? "on" : `to ${max}`}`;
}

/** The parameters of a request for the changed settings: numbers, and the stop texts.
 * @param {Changed} changed
 * @returns {Record<string, unknown>}
 */
export function requestValues({ stop = "", ...numbers }) {
  const texts = stop.split("\n").filter(Boolean).map(unescaped);
  return texts.length ? { ...numbers, stop: texts } : numbers;
}

/** The changed settings after one was set; an empty or default value is no change.
 * @param {Changed} changed
 * @param {string} name
 * @param {number | string | null} value
 * @param {Record<string, number>} defaults
 * @returns {Changed}
 */
export function withSetting(changed, name, value, defaults) {
  const { [name]: _, ...others } = changed;
  return value === null || value === "" || value === defaults[name] ? others : { ...others, [name]: value };
}

/** Text in which `\n`, `\t` and `\\` are a line end, a tab and a backslash.
 * @param {string} text
 */
export function unescaped(text) {
  const characters = /** @type {Record<string, string>} */ ({ "\\n": "\n", "\\t": "\t", "\\\\": "\\" });
  return text.replace(/\\[nt\\]/g, (escape) => characters[escape]);
}
