// @ts-check
/** Training curves over one another: a line for each run, and a legend that tells their values. */

import { axis, brief, nearest, place, pointBefore } from "./axis.js";
import { frame, svg, upright, withCursor } from "./chart.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./requests.js").Point} Point */
/** @typedef {{ name: string, points: Point[] }} NamedPoints */

const COLORS = 8; // of the page's palette; beyond them lines are dashed
const DASHES = ["", "6 3", "2 3"];
const BITS = "bits per byte";
const DECIMALS = 3;

/** How many curves can be told apart. */
export const MOST = COLORS * DASHES.length;

/** A figure of curves, [{ name, points: [[x, bits per byte], …] }, …], along an axis of this name.
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
  const [drawing, at] = [frame(x, y), place(x, y)];
  drawing.append(...curves.map((curve, index) => line(curve.points.map((point) => at(...point)), index)));
  const stops = [...new Set(points.map(([across]) => across))].sort((one, other) => one - other);
  const places = stops.map((stop) => at(stop, y.low));
  /** @type {Element | null} */
  let cursor = null;
  const show = (/** @type {number | null} */ stop) => {
    cursor?.remove();
    cursor = stop === null ? null : upright(places[stop][0]);
    if (cursor) drawing.append(cursor);
    return legend.tell(stop === null ? null : stops[stop]);
  };
  const find = (/** @type {number} */ across) => nearest(places, across, places[0][1]);
  return withCursor(drawing, `Training curves by ${along}`, stops.length, find, show);
}

/** @param {Point[]} points @param {number} index */
function line(points, index) {
  const look = lookOf(index);
  if (points.length > 1) return svg("polyline", { ...look, points: points.map((point) => point.join()).join(" ") });
  return svg("g", look, ...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 3 })));
}

/** @param {number} index */
function lookOf(index) {
  const dash = DASHES[Math.floor(index / COLORS) % DASHES.length];
  return { class: `line color${index % COLORS}`, "stroke-dasharray": dash };
}

/** The name of each curve beside its line, and its value where the cursor is. */
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
    this.tell(null);
  }

  /** Show the values there, or at the ends for null; in words.
   * @param {number | null} where
   */
  tell(where) {
    const there = where === null ? "At the end of each" : `At ${this.#along} ${brief(where)}`;
    const at = this.#curves.map(({ points }) => (where === null ? points.at(-1) : pointBefore(points, where)));
    const texts = at.map(written);
    this.#where.textContent = `${there}, ${BITS}:`;
    for (const [index, node] of this.#values.entries()) node.textContent = texts[index];
    return `${there}: ${this.#curves.map(({ name }, index) => `${name} ${texts[index]}`).join(", ")}`;
  }
}

/** @param {Point | undefined} point */
function written(point) {
  return point ? point[1].toFixed(DECIMALS) : "–";
}

/** @param {number} index */
function sample(index) {
  const stroke = svg("line", { ...lookOf(index), x1: 0, x2: 24, y1: 5, y2: 5 });
  return svg("svg", { class: "sample", viewBox: "0 0 24 10", width: 24, height: 10, "aria-hidden": "true" }, stroke);
}
