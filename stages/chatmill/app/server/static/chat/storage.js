// @ts-check
/** Small values that this browser keeps from visit to visit, as JSON under a name. */

/** The value of a name, or what stands in for it where none is kept or nothing can be.
 * @template Value
 * @param {string} name
 * @param {Value} otherwise
 * @returns {Value}
 */
export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`chatmill.${name}`) ?? "null") ?? otherwise;
  } catch {
    return otherwise; // a browser that keeps nothing, or a damaged value
  }
}

/** Keep a value; where the browser keeps nothing, it lasts as long as the page.
 * @param {string} name
 * @param {unknown} value
 */
export function keep(name, value) {
  try {
    localStorage.setItem(`chatmill.${name}`, JSON.stringify(value));
  } catch (error) {
    console.info(`not kept: ${name} (${error})`);
  }
}
