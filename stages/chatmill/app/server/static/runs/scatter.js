// @ts-check
/** A scatter plot of bits per byte against a cost. The colour of a mark is the tokenizer's, its number the depth. */

import { axis, nearest, toPixels } from "./axis.js";
import { frame, svg, withCursor } from "./chart.js";
import { COLUMNS, shown } from "./columns.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./columns.js").Column} Column */
/** @typedef {import("./requests.js").Run} Run */

const UP = column("bits_per_byte");
const COLORS = 8;
const RADIUS = 8;
const HINT = "Point at a mark, or move along the chart with the arrow keys.";

/** The types of the tokenizers of measured runs.
 * @param {Run[]} runs
 */
export function kindsOf(runs) {
  return [...new Set(runs.filter((run) => run[UP.key] !== null).map(kindOf))].sort();
}

/** The costs against which bits per byte can be drawn. */
export const COSTS = ["milliseconds_per_token", "graph_megabytes", "parameters", "steps"].map(column);

/** A figure of the runs that have both values, with a colour for each of `kinds`; a sentence if there are none.
 * @param {Run[]} runs
 * @param {Column} cost
 * @param {string[]} kinds
 */
export function scatterFigure(runs, cost, kinds) {
  const drawn = runs.filter((run) => run[UP.key] !== null && run[cost.key] !== null);
  if (!drawn.length) return element("p", { className: "hint" }, "None of the shown runs has both values.");
  drawn.sort((one, other) => one[cost.key] - other[cost.key]);
  const x = axis(cost.title.toLowerCase(), drawn.map((run) => run[cost.key]));
  const y = axis(UP.title.toLowerCase(), drawn.map((run) => run[UP.key]));
  const at = toPixels(x, y);
  const points = drawn.map((run) => at(run[cost.key], run[UP.key]));
  const marks = drawn.map((run, index) => mark(run, points[index], kinds));
  const drawing = frame(x, y);
  drawing.append(...marks);
  const description = element("p", { className: "hint description" });
  const show = (/** @type {number | null} */ stop) => {
    marks.forEach((node, index) => node.classList.toggle("chosen", index === stop));
    if (stop !== null) drawing.append(marks[stop]); // above the others
    description.textContent = stop === null ? HINT : inWords(drawn[stop], cost);
    return inWords(drawn[stop ?? 0], cost);
  };
  const find = (/** @type {number} */ across, /** @type {number} */ up) => nearest(points, across, up);
  const chart = withCursor(drawing, `Bits per byte against ${cost.title}`, drawn.length, find, show);
  return element("figure", {}, chart, element("figcaption", {}, description, legend(kinds)));
}

/** @param {string} key */
function column(key) {
  return COLUMNS.filter((column) => column.key === key)[0];
}

/** @param {Run} run @param {import("./requests.js").Point} point @param {string[]} kinds */
function mark(run, [across, up], kinds) {
  const circle = svg("circle", { cx: across, cy: up, r: RADIUS });
  const depth = svg("text", { x: across, y: up + 4, "text-anchor": "middle" }, String(run.depth ?? ""));
  return svg("g", { class: `mark ${colorOf(kindOf(run), kinds)}` }, circle, depth);
}

/** @param {Run} run @returns {string} */
function kindOf(run) {
  return run.tokenizer ?? "unknown";
}

/** @param {string} kind @param {string[]} kinds */
function colorOf(kind, kinds) {
  return `color${kinds.indexOf(kind) % COLORS}`;
}

/** @param {Run} run @param {Column} cost */
function inWords(run, cost) {
  const depth = run.depth === null ? "" : `, depth ${run.depth}`;
  return `${run.label}: ${kindOf(run)}${depth}, bits per byte ${shown(UP, run)}, ${cost.title} ${shown(cost, run)}`;
}

/** @param {string[]} kinds */
function legend(kinds) {
  const items = kinds.map((kind) => {
    const dot = svg("svg", { class: "sample", viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" });
    dot.append(svg("circle", { class: colorOf(kind, kinds), cx: 5, cy: 5, r: 5 }));
    return element("li", {}, dot, element("span", {}, kind));
  });
  return element("ul", { className: "legend", "aria-label": "Tokenizers" }, ...items);
}
