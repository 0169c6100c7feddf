/** What charts are made of: SVG, axes with round marks, and a cursor that the pointer and the keyboard move. */

import { element } from "./dom.js";

const WIDTH = 480; // units of the drawing; few, so that its type stays legible on a phone
const HEIGHT = 280;
const LEFT = 48;
const RIGHT = 26;
const TOP = 34;
const BOTTOM = 40;
const MARKS = 5;
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

/** An SVG element with its attributes and children. */
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** One side of a chart: its name, its ends and its marks, at 1, 2 or 5 times a power of ten, around all values. */
export function axis(name, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const rough = (high - low || Math.abs(high) || 1) / MARKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * (1 - 1e-9));
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  const round = (mark) => Number(mark.toPrecision(12));
  const marks = Array.from({ length: last - first + 1 }, (_, index) => round((first + index) * step));
  return { name, marks, low: marks[0], high: marks.at(-1) };
}

/** Where a point of two axes stands in the drawing. */
export function place(x, y) {
  const share = (side, value) => (value - side.low) / (side.high - side.low);
  return (across, up) => [
    LEFT + share(x, across) * (WIDTH - LEFT - RIGHT),
    HEIGHT - BOTTOM - share(y, up) * (HEIGHT - BOTTOM - TOP),
  ];
}

/** A drawing with its axes. */
export function frame(x, y) {
  const at = place(x, y);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  for (const mark of y.marks) {
    const height = at(x.low, mark)[1];
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: height, y2: height }));
    drawing.append(svg("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, brief(mark)));
  }
  for (const mark of x.marks) {
    const across = at(mark, y.low)[0];
    drawing.append(svg("text", { x: across, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, brief(mark)));
  }
  drawing.append(svg("text", { x: 0, y: 14 }, y.name));
  drawing.append(svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, x.name));
  return drawing;
}

/** A vertical line through the drawing. */
export function upright(across) {
  return svg("line", { class: "cursor", x1: across, x2: across, y1: TOP, y2: HEIGHT - BOTTOM });
}

/**
 * The drawing inside of what a pointer and the keyboard move along its `count` stops.
 *
 * `nearest` gives the stop for a point of the drawing, `show` marks one (null: none) and gives it in words.
 */
export function withCursor(drawing, label, count, nearest, show) {
  const node = element("div", { className: "chart", tabIndex: 0, role: "slider", "aria-label": label });
  let stop = count - 1;
  const move = (to) => {
    stop = Math.min(Math.max(to, 0), count - 1);
    node.setAttribute("aria-valuenow", stop + 1);
    node.setAttribute("aria-valuetext", show(stop));
  };
  node.setAttribute("aria-valuemin", 1);
  node.setAttribute("aria-valuemax", count);
  node.append(drawing);
  node.addEventListener("pointermove", (event) => move(nearest(...inDrawing(drawing, event))));
  node.addEventListener("pointerleave", () => document.activeElement === node || show(null));
  node.addEventListener("focus", () => move(stop));
  node.addEventListener("blur", () => show(null));
  node.addEventListener("keydown", (event) => {
    const to = { Home: 0, End: count - 1 }[event.key] ?? stop + (KEYS[event.key] ?? NaN);
    if (Number.isNaN(to)) return;
    event.preventDefault();
    move(to);
  });
  move(stop);
  show(null);
  return node;
}

/** A value on an axis: 40, 1,200, 3.5M. */
export function brief(value) {
  const notation = Math.abs(value) >= 1e5 ? "compact" : "standard";
  return value.toLocaleString("en", { notation, maximumSignificantDigits: 4 });
}

function inDrawing(drawing, event) {
  const box = drawing.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
}
