// @ts-check
/** The table of runs, which can be sorted by any column; the best value of each is marked. */

import { element } from "../shared/dom.js";

/** @typedef {import("./selection.js").Run} Run */
/** @typedef {{ key: string, title: string, about?: string, show: (value: any) => string, first?: string, best?: string,
 *   note?: string, like?: string }} Column */

const LOW = "low";
const HIGH = "high";

/** `best` is the better end of a column's values, if there is one; `first` is the end with which a sort starts.
 * @type {Column[]}
 */
export const COLUMNS = [
  { key: "label", title: "Run", show: String, first: LOW },
  { key: "when", title: "When", show: (time) => time.slice(0, 16).replace("T", " "), first: HIGH },
  { key: "tokenizer", title: "Tokenizer", show: String, first: LOW },
  { key: "vocabulary", title: "Vocabulary", show: integer, first: LOW },
  { key: "depth", title: "Depth", show: integer, first: LOW },
  { key: "parameters", title: "Parameters", show: integer, first: LOW },
  { key: "steps", title: "Steps", show: integer, first: LOW },
  { key: "bits_per_byte", title: "Bits per byte", show: fixed(3), best: LOW },
  { key: "bits_per_byte_answers", title: "… of answers", about: "Bits of answers", show: fixed(3), best: LOW },
  { key: "skills", title: "Skills", show: percent, best: HIGH },
  { key: "skills_held_back", title: "… held back", about: "Skills, held back", show: percent, best: HIGH },
  { key: "verbatim", title: "Copied", about: "Copied from the training data", show: percent, best: LOW },
  { key: "bytes_per_token", title: "Bytes per token", show: fixed(2), best: HIGH },
  { key: "milliseconds_per_token", title: "ms per token", show: significant, best: LOW, note: "engine",
    like: "timing" },
  { key: "model_mb", title: "Graph, MB", show: fixed(2), best: LOW },
];

/** A table inside a node; it changes the set of names `ticked` and calls `onTick` after a change. */
export class RunsTable {
  /** @type {Column | null} */
  #column = null; // null: the server's order, the latest first
  #descending = false;
  /** @type {Map<Column, HTMLElement>} */
  #heads = new Map();
  #body = element("tbody");
  /** @type {Run[]} */
  #runs = [];

  /** @param {HTMLElement} node @param {Set<string>} ticked @param {() => void} onTick */
  constructor(node, ticked, onTick) {
    this.ticked = ticked;
    this.onTick = onTick;
    const heads = COLUMNS.map((column) => this.#head(column));
    const first = element("th", { scope: "col" }, element("span", { className: "unseen" }, "Ticked"));
    const head = element("thead", {}, element("tr", {}, first, ...heads));
    const caption = element("caption", { className: "unseen" }, "Runs of this repository");
    node.append(element("table", {}, caption, head, this.#body));
  }

  /** @param {Run[]} runs */
  show(runs) {
    this.#runs = runs;
    this.#fill();
  }

  /** Show which runs are ticked. */
  markTicks() {
    for (const box of this.#body.querySelectorAll("input")) box.checked = this.ticked.has(box.value);
  }

  /** @param {Column} column */
  #head(column) {
    const sort = element("button", { type: "button", className: "sort", onclick: () => this.#sortBy(column) });
    sort.append(column.title, element("span", { className: "arrow", "aria-hidden": "true" }));
    if (column.about) sort.setAttribute("aria-label", column.about);
    const head = element("th", { scope: "col", "aria-sort": "none" }, sort);
    this.#heads.set(column, head);
    return head;
  }

  /** @param {Column} column */
  #sortBy(column) {
    const startsHigh = (column.first ?? column.best) === HIGH;
    this.#descending = column === this.#column ? !this.#descending : startsHigh;
    this.#column = column;
    const way = this.#descending ? "descending" : "ascending";
    for (const [other, head] of this.#heads) head.setAttribute("aria-sort", other === column ? way : "none");
    this.#fill();
  }

  #fill() {
    const best = new Map(COLUMNS.map((column) => [column, bestOf(column, this.#runs)]));
    const runs = this.#column ? sorted(this.#runs, this.#column, this.#descending) : this.#runs;
    this.#body.replaceChildren(...runs.map((run) => this.#row(run, best)));
  }

  /** @param {Run} run @param {Map<Column, number | null>} best */
  #row(run, best) {
    const [, ...rest] = COLUMNS;
    const cells = rest.map((column) => cell(column, run, best.get(column) ?? null));
    return element("tr", {}, element("td", {}, this.#tick(run)), rowHead(run), ...cells);
  }

  /** @param {Run} run */
  #tick({ name }) {
    const look = { "aria-label": `Tick ${name}`, value: name, checked: this.ticked.has(name) };
    const box = element("input", { type: "checkbox", ...look });
    box.addEventListener("change", () => {
      this.ticked[box.checked ? "add" : "delete"](name);
      this.onTick();
    });
    return box;
  }
}

/** A run's name, and what is to be said of it.
 * @param {Run} run
 */
function rowHead(run) {
  const remarks = run.model ? [] : ["no model on this machine"];
  const notes = element("small", {}, [run.kind, ...remarks].join(" · "));
  if (run.report) {
    const address = { href: `/runs/${encodeURIComponent(run.name)}/report`, target: "_blank", rel: "noopener" };
    notes.append(" · ", element("a", { ...address, "aria-label": `Report of ${run.name}` }, "report"));
  }
  const head = element("th", { scope: "row" });
  head.append(element("span", { className: "name", title: run.rev }, run.label), notes);
  const differs = differences(run);
  const words = differs.split(/(?<=\.)/).flatMap((part) => [part, element("wbr")]);
  if (differs) head.append(element("small", { className: "differs", title: differs }, ...words));
  return head;
}

/** What a run differs in from most: "steps 500, depth 4"; "" where in nothing.
 * @param {Run} run
 */
export function differences(run) {
  return Object.entries(run.differs)
    .map(([key, value]) => `${key.replace(/^train_model\./, "")}\u00a0${value}`)
    .join(", ");
}

/** @param {Column} column @param {Run} run @param {number | null} best */
function cell(column, run, best) {
  const text = shown(column, run);
  const isBest = best !== null && run[column.key] === best;
  const node = element("td", { className: isBest ? "best" : "" }, isBest ? `★ ${text}` : text);
  if (column.note && run[column.note]) node.append(element("small", {}, run[column.note]));
  return node;
}

/** The text of a run in a column; a dash if the value is missing.
 * @param {Column} column
 * @param {Run} run
 */
export function shown(column, run) {
  const value = run[column.key];
  return value === null ? "–" : column.show(value);
}

/** The runs in the order of a column; those without a value come last in both directions.
 * @param {Run[]} runs
 * @param {Column} column
 * @param {boolean} descending
 */
export function sorted(runs, column, descending) {
  const withValue = runs.filter((run) => run[column.key] !== null);
  const withoutValue = runs.filter((run) => run[column.key] === null);
  withValue.sort((one, other) => compare(one[column.key], other[column.key]));
  return [...(descending ? withValue.reverse() : withValue), ...withoutValue];
}

/** The best value of a column; null if fewer than two runs have one, all have the same, or they differ in `like`.
 * @param {Column} column
 * @param {Run[]} runs
 */
export function bestOf(column, runs) {
  const found = runs.filter((run) => run[column.key] !== null);
  if (column.like && new Set(found.map((run) => run[column.like ?? ""])).size > 1) return null;
  const values = found.map((run) => run[column.key]);
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (!column.best || values.length < 2 || low === high) return null;
  return column.best === LOW ? low : high;
}

/** @param {number | string} one @param {number | string} other */
function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true }); // "run 10" comes after "run 9"
}

/** @param {number} value */
function integer(value) {
  return value.toLocaleString("en");
}

/** @param {number} decimals */
function fixed(decimals) {
  return (/** @type {number} */ value) => value.toFixed(decimals);
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/** @param {number} value */
function significant(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}
