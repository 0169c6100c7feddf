// @ts-check
/** The parts of charts: SVG elements, axes, and a cursor that is moved by the pointer or the keyboard. */

import { BOTTOM, formatTick, HEIGHT, LEFT, toPixels, RIGHT, TOP, WIDTH } from "./axis.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./axis.js").Axis} Axis */

/** @type {Record<string, number>} */
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

/** An SVG element with its attributes and children.
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 */
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

/** A drawing with its axes.
 * @param {Axis} x
 * @param {Axis} y
 */
export function frame(x, y) {
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

/** A vertical line through the drawing.
 * @param {number} across
 */
export function upright(across) {
  return svg("line", { class: "cursor", x1: across, x2: across, y1: TOP, y2: HEIGHT - BOTTOM });
}

/**
 * A slider with the drawing, whose cursor moves along `count` stops by the pointer or the keyboard.
 *
 * `nearest` returns the stop for a point of the drawing; `show` marks a stop, or none for null, and returns its text.
 * @param {Element} drawing
 * @param {string} label
 * @param {number} count
 * @param {(across: number, up: number) => number} nearest
 * @param {(stop: number | null) => string} show
 */
export function withCursor(drawing, label, count, nearest, show) {
  const node = element("div", { className: "chart", tabIndex: 0, role: "slider", "aria-label": label });
  let stop = count - 1;
  const move = (/** @type {number} */ to) => {
    stop = Math.min(Math.max(to, 0), count - 1);
    node.setAttribute("aria-valuenow", String(stop + 1));
    node.setAttribute("aria-valuetext", show(stop));
  };
  node.setAttribute("aria-valuemin", "1");
  node.setAttribute("aria-valuemax", String(count));
  node.append(drawing);
  node.addEventListener("pointermove", (event) => move(nearest(...inDrawing(drawing, event))));
  node.addEventListener("pointerleave", () => document.activeElement === node || show(null));
  node.addEventListener("focus", () => move(stop));
  node.addEventListener("blur", () => show(null));
  node.addEventListener("keydown", (event) => {
    const ends = /** @type {Record<string, number>} */ ({ Home: 0, End: count - 1 });
    const to = ends[event.key] ?? stop + (KEYS[event.key] ?? NaN);
    if (Number.isNaN(to)) return;
    event.preventDefault();
    move(to);
  });
  move(stop);
  show(null);
  return node;
}

/** @param {Element} drawing @param {PointerEvent} event @returns {[number, number]} */
function inDrawing(drawing, event) {
  const box = drawing.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
}
