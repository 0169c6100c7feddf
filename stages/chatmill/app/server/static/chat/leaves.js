// @ts-check
/** The controls by which versions are leafed through: ‹ 2/3 ›. */

import { button, element } from "../shared/dom.js";

/** @typedef {{ index: number, count: number, choose: (index: number) => unknown }} Versions of a message or an answer */

/** @param {Versions} versions @param {string} what "answer" @param {string} className */
export function leaves({ index, count, choose }, what, className) {
  const step = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {number} */ to) =>
    button(sign, () => choose(to), {
      className: `quiet leaf ${className}`,
      "aria-label": `${label} ${what}`,
      disabled: to < 0 || to >= count,
    });
  const place = element("span", { className: "place" }, `${index + 1}/${count}`);
  return [step("‹", "Earlier", index - 1), place, step("›", "Later", index + 1)];
}

/** Focus the first or the last control in a node, or the other one if that is disabled.
 * @param {Element} node
 * @param {boolean} earlier
 */
export function focusLeaf(node, earlier) {
  const [first, last] = /** @type {NodeListOf<HTMLButtonElement>} */ (node.querySelectorAll(".leaf"));
  const [wanted, other] = earlier ? [first, last] : [last, first];
  (wanted?.disabled ? other : wanted)?.focus();
}
