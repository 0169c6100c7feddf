// @ts-check
/** The chart of training curves: a line for each run, and a legend with their values at a cursor that the pointer or
 * the keyboard moves. */

import { element } from "../shared/dom.js";

/** @typedef {import("./selection.js").Point} Point */
/** @typedef {{ name: string, points: Point[] }} NamedPoints */
/** @typedef {{ name: string, marks: number[], low: number, high: number }} Axis its ticks and its ends */

const WIDTH = 480; // units of the drawing; few, so that its type stays legible on a phone
const HEIGHT = 280;
const LEFT = 48;
const RIGHT = 26;
const TOP = 34;
const BOTTOM = 40;
const MARKS = 5;
const COLORS = 8; // of the page's palette; further lines are dashed
const DASHES = ["", "6 3", "2 3"];
const BITS = "bits per byte";
/** @type {Record<string, number>} */
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

/** How many curves can be distinguished. */
export const MAX_CURVES = COLORS * DASHES.length;

/** A figure of curves, [{ name, points: [[x, bits per byte], …] }, …], over an axis with the name `along`.
 * @param {NamedPoints[]} curves
 * @param {string} along
 */
export function curvesFigure(curves, along) {
  const points = curves.flatMap((curve) => curve.points);
  const x = axis(along, [0, ...points.map(([across]) => across)]);
  const y = axis(BITS, points.map(([, up]) => up));
  const drawing = frame(x, y);
  const at = toPixels(x, y);
  drawing.append(...curves.map((curve, index) => line(curve.points.map((point) => at(...point)), index)));
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
  const legend = new Legend(curves, along);
  const stops = [...new Set(points.map(([across]) => across))].sort((one, other) => one - other);
  const places = stops.map((stop) => at(stop, y.low)[0]);
  const show = (/** @type {number | null} */ stop) => {
    if (stop === null) cursor.remove();
    else {
      cursor.setAttribute("x1", String(places[stop]));
      cursor.setAttribute("x2", String(places[stop]));
      drawing.append(cursor);
    }
    return legend.showValues(stop === null ? null : stops[stop]);
  };
  return element("figure", {}, slider(drawing, `Training curves by ${along}`, places, show), legend.node);
}

/** An axis that contains all values, with ticks at multiples of 1, 2 or 5 times a power of ten.
 * @param {string} name
 * @param {number[]} values
 * @returns {Axis}
 */
export function axis(name, values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const rough = (high - low || Math.abs(high) || 1) / MARKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((times) => times * power >= rough * (1 - 1e-9)) ?? 10);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  const marks = Array.from({ length: last - first + 1 }, (_, index) =>
    Number(((first + index) * step).toPrecision(12)),
  );
  return { name, marks, low: marks[0], high: marks[marks.length - 1] };
}

/** A function from the values of a point on two axes to its position in the drawing.
 * @param {Axis} x
 * @param {Axis} y
 * @returns {(across: number, up: number) => Point}
 */
function toPixels(x, y) {
  return (across, up) => [
    LEFT + ((across - x.low) / (x.high - x.low)) * (WIDTH - LEFT - RIGHT),
    HEIGHT - BOTTOM - ((up - y.low) / (y.high - y.low)) * (HEIGHT - BOTTOM - TOP),
  ];
}

/** The label of a tick: 40, 1,200, 3.5M.
 * @param {number} value
 */
export function formatTick(value) {
  const notation = Math.abs(value) >= 1e5 ? "compact" : "standard";
  return value.toLocaleString("en", { notation, maximumSignificantDigits: 4 });
}

/** The last point of a curve at or before `where`; undefined past the end of the curve.
 * @param {Point[]} points
 * @param {number} where
 */
export function pointBefore(points, where) {
  const end = points.at(-1);
  return end && end[0] >= where ? points.findLast(([across]) => across <= where) : undefined;
}

/** A drawing with its axes.
 * @param {Axis} x
 * @param {Axis} y
 */
function frame(x, y) {
  const at = toPixels(x, y);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  for (const mark of y.marks) {
    const height = at(x.low, mark)[1];
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: height, y2: height }));
    drawing.append(svg("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, formatTick(mark)));
  }
  for (const mark of x.marks) {
    const across = at(mark, y.low)[0];
    drawing.append(svg("text", { x: across, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, formatTick(mark)));
  }
  drawing.append(svg("text", { x: 0, y: 14 }, y.name));
  drawing.append(svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, x.name));
  return drawing;
}

/** @param {Point[]} points @param {number} index */
function line(points, index) {
  const look = lineStyle(index);
  if (points.length > 1) return svg("polyline", { ...look, points: points.map((point) => point.join()).join(" ") });
  return svg("g", look, ...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 3 })));
}

/** @param {number} index */
function lineStyle(index) {
  const dash = DASHES[Math.floor(index / COLORS) % DASHES.length];
  return { class: `line color${index % COLORS}`, "stroke-dasharray": dash };
}

/** A slider with the drawing, whose cursor moves along `places` by the pointer or the keyboard.
 * @param {Element} drawing
 * @param {string} label
 * @param {number[]} places
 * @param {(stop: number | null) => string} show marks a stop, or none for null, and returns its text
 */
function slider(drawing, label, places, show) {
  const last = places.length - 1;
  const range = { "aria-label": label, "aria-valuemin": "1", "aria-valuemax": String(last + 1) };
  const node = element("div", { className: "chart", tabIndex: 0, role: "slider", ...range }, drawing);
  let stop = last;
  const move = (/** @type {number} */ to) => {
    stop = Math.min(Math.max(to, 0), last);
    node.setAttribute("aria-valuenow", String(stop + 1));
    node.setAttribute("aria-valuetext", show(stop));
  };
  node.addEventListener("pointermove", ({ clientX }) => {
    const { left, width } = drawing.getBoundingClientRect();
    const across = ((clientX - left) / width) * WIDTH;
    const distances = places.map((place) => Math.abs(place - across));
    move(distances.indexOf(Math.min(...distances)));
  });
  node.addEventListener("pointerleave", () => document.activeElement === node || show(null));
  node.addEventListener("focus", () => move(stop));
  node.addEventListener("blur", () => show(null));
  node.addEventListener("keydown", (event) => {
    const ends = /** @type {Record<string, number>} */ ({ Home: 0, End: last });
    const to = ends[event.key] ?? stop + KEYS[event.key];
    if (Number.isNaN(to)) return; // another key
    event.preventDefault();
    move(to);
  });
  move(stop);
  show(null);
  return node;
}

/** The legend: the line and name of each curve, and its value at the cursor. */
class Legend {
  /** @type {NamedPoints[]} */
  #curves;
  /** @type {string} */
  #along;
  #where = element("p", { className: "hint" });
  #values;

  /** @param {NamedPoints[]} curves @param {string} along */
  constructor(curves, along) {
    this.#curves = curves;
    this.#along = along;
    this.#values = curves.map(() => element("output"));
    const items = curves.map(({ name }, index) =>
      element("li", {}, sample(index), element("span", {}, name), this.#values[index]),
    );
    this.node = element("figcaption", {}, this.#where, element("ul", { className: "legend" }, ...items));
    this.showValues(null);
  }

  /** Show the values at a position, or at the curves' ends for null; returns them as text.
   * @param {number | null} where
   */
  showValues(where) {
    const there = where === null ? "At the end of each" : `At ${this.#along} ${formatTick(where)}`;
    const texts = this.#curves.map(({ points }) => {
      const point = where === null ? points.at(-1) : pointBefore(points, where);
      return point ? point[1].toFixed(3) : "–";
    });
    this.#where.textContent = `${there}, ${BITS}:`;
    for (const [index, node] of this.#values.entries()) node.textContent = texts[index];
    return `${there}: ${this.#curves.map(({ name }, index) => `${name} ${texts[index]}`).join(", ")}`;
  }
}

/** @param {number} index */
function sample(index) {
  const stroke = svg("line", { ...lineStyle(index), x1: 0, x2: 24, y1: 5, y2: 5 });
  return svg("svg", { class: "sample", viewBox: "0 0 24 10", width: 24, height: 10, "aria-hidden": "true" }, stroke);
}

/** An SVG element with its attributes and children.
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 */
function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}
