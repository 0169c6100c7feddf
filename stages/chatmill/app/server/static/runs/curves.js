// @ts-check
/** A figure of training curves: a line for each run, and a legend with their values. */

import { axis, formatTick, nearest, toPixels, pointBefore } from "./axis.js";
import { frame, svg, upright, withCursor } from "./chart.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./requests.js").Point} Point */
/** @typedef {{ name: string, points: Point[] }} NamedPoints */

const COLORS = 8; // of the page's palette; further lines are dashed
const DASHES = ["", "6 3", "2 3"];
const BITS = "bits per byte";
const DECIMALS = 3;

/** How many curves can be distinguished. */
export const MAX_CURVES = COLORS * DASHES.length;

/** A figure of curves, [{ name, points: [[x, bits per byte], …] }, …], over an axis with the name `along`.
 * @param {NamedPoints[]} curves
 * @param {string} along
 */
export function curvesFigure(curves, along) {
  const legend = new Legend(curves, along);
  const points = curves.flatMap((curve) => curve.points);
  return element("figure", {}, chart(curves, points, along, legend), legend.node);
}

/** @param {NamedPoints[]} curves @param {Point[]} points @param {string} along @param {Legend} legend */
function chart(curves, points, along, legend) {
  const x = axis(along, [0, ...points.map(([across]) => across)]);
  const y = axis(BITS, points.map(([, up]) => up));
  const [drawing, at] = [frame(x, y), toPixels(x, y)];
  drawing.append(...curves.map((curve, index) => line(curve.points.map((point) => at(...point)), index)));
  const stops = [...new Set(points.map(([across]) => across))].sort((one, other) => one - other);
  const places = stops.map((stop) => at(stop, y.low));
  /** @type {Element | null} */
  let cursor = null;
  const show = (/** @type {number | null} */ stop) => {
    cursor?.remove();
    cursor = stop === null ? null : upright(places[stop][0]);
    if (cursor) drawing.append(cursor);
    return legend.showValues(stop === null ? null : stops[stop]);
  };
  const find = (/** @type {number} */ across) => nearest(places, across, places[0][1]);
  return withCursor(drawing, `Training curves by ${along}`, stops.length, find, show);
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
    const at = this.#curves.map(({ points }) => (where === null ? points.at(-1) : pointBefore(points, where)));
    const texts = at.map(formatPoint);
    this.#where.textContent = `${there}, ${BITS}:`;
    for (const [index, node] of this.#values.entries()) node.textContent = texts[index];
    return `${there}: ${this.#curves.map(({ name }, index) => `${name} ${texts[index]}`).join(", ")}`;
  }
}

/** @param {Point | undefined} point */
function formatPoint(point) {
  return point ? point[1].toFixed(DECIMALS) : "–";
}

/** @param {number} index */
function sample(index) {
  const stroke = svg("line", { ...lineStyle(index), x1: 0, x2: 24, y1: 5, y2: 5 });
  return svg("svg", { class: "sample", viewBox: "0 0 24 10", width: 24, height: 10, "aria-hidden": "true" }, stroke);
}
