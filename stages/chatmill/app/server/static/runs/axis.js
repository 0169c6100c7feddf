// @ts-check
/** The axes of a chart: their ticks, and the position of a point. The charts use no library, as two small drawings
 * need less code than one.
 */

/** @typedef {{ name: string, marks: number[], low: number, high: number }} Axis its ticks and its ends */
/** @typedef {import("./requests.js").Point} Point */

export const WIDTH = 480; // units of the drawing; few, so that its type stays legible on a phone
export const HEIGHT = 280;
export const LEFT = 48;
export const RIGHT = 26;
export const TOP = 34;
export const BOTTOM = 40;
const MARKS = 5;

/** An axis that contains all values, with ticks at multiples of 1, 2 or 5 times a power of ten.
 * @param {string} name
 * @param {number[]} values
 * @returns {Axis}
 */
export function axis(name, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const rough = (high - low || Math.abs(high) || 1) / MARKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((times) => times * power >= rough * (1 - 1e-9)) ?? 10);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  const marks = Array.from({ length: last - first + 1 }, (_, index) => round((first + index) * step));
  return { name, marks, low: marks[0], high: marks[marks.length - 1] };
}

/** A function from the values of a point on two axes to its position in the drawing.
 * @param {Axis} x
 * @param {Axis} y
 * @returns {(across: number, up: number) => Point}
 */
export function toPixels(x, y) {
  return (across, up) => [
    LEFT + share(x, across) * (WIDTH - LEFT - RIGHT),
    HEIGHT - BOTTOM - share(y, up) * (HEIGHT - BOTTOM - TOP),
  ];
}

/** The label of a tick: 40, 1,200, 3.5M.
 * @param {number} value
 */
export function formatTick(value) {
  const notation = Math.abs(value) >= 1e5 ? "compact" : "standard";
  return value.toLocaleString("en", { notation, maximumSignificantDigits: 4 });
}

/** The index of the nearest point.
 * @param {Point[]} points
 * @param {number} across
 * @param {number} up
 */
export function nearest(points, across, up) {
  const distances = points.map(([x, y]) => Math.hypot(x - across, y - up));
  return distances.indexOf(Math.min(...distances));
}

/** The last point of a curve at or before `where`; undefined past the end of the curve.
 * @param {Point[]} points
 * @param {number} where
 */
export function pointBefore(points, where) {
  const end = points.at(-1);
  return end && end[0] >= where ? points.findLast(([across]) => across <= where) : undefined;
}

/** @param {Axis} side @param {number} value */
function share(side, value) {
  return (value - side.low) / (side.high - side.low);
}

/** @param {number} mark */
function round(mark) {
  return Number(mark.toPrecision(12));
}
