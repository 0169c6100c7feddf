// @ts-check
/** The sides of a chart: round marks around all values, and where a point stands. They are ours, as the charts are:
 * two small drawings are less than a library of them.
 */

/** @typedef {{ name: string, marks: number[], low: number, high: number }} Axis its ends, and its marks between */
/** @typedef {import("./requests.js").Point} Point */

export const WIDTH = 480; // units of the drawing; few, so that its type stays legible on a phone
export const HEIGHT = 280;
export const LEFT = 48;
export const RIGHT = 26;
export const TOP = 34;
export const BOTTOM = 40;
const MARKS = 5;

/** One side of a chart: its name, its ends and its marks, at 1, 2 or 5 times a power of ten, around all values.
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

/** Where a point of two axes stands in the drawing.
 * @param {Axis} x
 * @param {Axis} y
 * @returns {(across: number, up: number) => Point}
 */
export function place(x, y) {
  return (across, up) => [
    LEFT + share(x, across) * (WIDTH - LEFT - RIGHT),
    HEIGHT - BOTTOM - share(y, up) * (HEIGHT - BOTTOM - TOP),
  ];
}

/** A value on an axis: 40, 1,200, 3.5M.
 * @param {number} value
 */
export function brief(value) {
  const notation = Math.abs(value) >= 1e5 ? "compact" : "standard";
  return value.toLocaleString("en", { notation, maximumSignificantDigits: 4 });
}

/** Which of the points lies nearest.
 * @param {Point[]} points
 * @param {number} across
 * @param {number} up
 */
export function nearest(points, across, up) {
  const distances = points.map(([x, y]) => Math.hypot(x - across, y - up));
  return distances.indexOf(Math.min(...distances));
}

/** The last point of a curve up to there; none past its end.
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
