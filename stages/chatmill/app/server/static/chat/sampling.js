// @ts-check
/** How tokens are chosen and where an answer ends: what can be set, and what a request says of it. */

/** @typedef {{ name: string, label: string, min: number, max?: number, step: number, hint: string }} Control */
/** @typedef {{ [name: string]: number | string | undefined, stop?: string }} Changed what differs from the defaults */

/** @type {Control[]} */
export const CONTROLS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.01, hint: "0: the likeliest token, always" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: 0.001, hint: "only the likeliest with this probability" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "only so many of the likeliest; 0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.001, hint: "only those this likely, beside the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.01, hint: "1: none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "empty: at random" },
  { name: "max_tokens", label: "Most tokens", min: 1, step: 1, hint: "of an answer" },
];

/** What a request says of the settings that were changed: numbers, and the texts at which an answer stops.
 * @param {Changed} changed
 * @returns {Record<string, unknown>}
 */
export function requestValues({ stop = "", ...numbers }) {
  const texts = stop.split("\n").filter(Boolean).map(unescaped);
  return texts.length ? { ...numbers, stop: texts } : numbers;
}

/** The changed settings after one was set; a value that is empty or the default is no change.
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
  const meant = /** @type {Record<string, string>} */ ({ "\\n": "\n", "\\t": "\t", "\\\\": "\\" });
  return text.replace(/\\[nt\\]/g, (mark) => meant[mark]);
}
