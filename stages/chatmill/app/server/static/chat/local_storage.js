// @ts-check
/** Small values in the browser's local storage, as JSON under a name. */

/** The value of a name, or `fallback` if none is stored.
 * @template Value
 * @param {string} name
 * @param {Value} fallback
 * @returns {Value}
 */
export function load(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`chatmill.${name}`) ?? "null") ?? fallback;
  } catch {
    return fallback; // storage is disabled, or the value is damaged
  }
}

/** Store a value; nothing happens if the browser's storage is disabled or full.
 * @param {string} name
 * @param {unknown} value
 */
export function save(name, value) {
  try {
    localStorage.setItem(`chatmill.${name}`, JSON.stringify(value));
  } catch (error) {
    console.info(`not saved: ${name} (${error})`);
  }
}
