// @ts-check
/** The table of runs, which can be sorted by any column; the best value of each is marked. */

import { beginsDescending, bestOf, COLUMNS, shown, sorted } from "./columns.js";
import { differences } from "./groups.js";
import { reportAddress } from "./requests.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./columns.js").Column} Column */
/** @typedef {import("./requests.js").Run} Run */

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

  /** Show these runs.
   * @param {Run[]} runs
   */
  show(runs) {
    this.#runs = runs;
    this.#fill();
  }

  /** Show which runs are ticked. */
  markTicks() {
    for (const box of this.#body.querySelectorAll("input")) box.checked = this.ticked.has(box.value.split("\n")[0]);
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
    this.#descending = column === this.#column ? !this.#descending : beginsDescending(column);
    this.#column = column;
    for (const [other, head] of this.#heads) head.setAttribute("aria-sort", other === column ? this.#way() : "none");
    this.#fill();
  }

  #way() {
    return this.#descending ? "descending" : "ascending";
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
    return element("tr", {}, element("td", {}, this.#tick(run)), this.#name(run), ...cells);
  }

  /** @param {Run} run */
  #tick(run) {
    /** @type {string[]} */
    const names = run.members ?? [run.name];
    const properties = { value: names.join("\n"), checked: names.every((name) => this.ticked.has(name)) };
    const box = element("input", { type: "checkbox", ...properties });
    box.setAttribute("aria-label", `Tick ${names.join(", ")}`);
    box.addEventListener("change", () => {
      for (const name of names) this.ticked[box.checked ? "add" : "delete"](name);
      this.onTick();
    });
    return box;
  }

  /** @param {Run} run */
  #name(run) {
    const notes = element("small", {}, [run.kind, ...remarks(run)].join(" · "));
    if (run.report) notes.append(" · ", this.#report(run));
    const name = element("span", { className: "name", title: run.rev }, run.label);
    const head = element("th", { scope: "row" }, name, notes);
    const differs = differences(run);
    const words = differs.split(/(?<=\.)/).flatMap((part) => [part, element("wbr")]);
    if (differs) head.append(element("small", { className: "differs", title: differs }, ...words));
    if (run.problem) head.append(element("small", { className: "bad" }, run.problem));
    return head;
  }

  /** @param {Run} run */
  #report(run) {
    const properties = { href: reportAddress(run.name), target: "_blank", rel: "noopener" };
    return element("a", { ...properties, "aria-label": `Report of ${run.name}` }, "report");
  }
}

/** @param {Column} column @param {Run} run @param {number | null} best */
function cell(column, run, best) {
  const text = shown(column, run);
  const isBest = best !== null && run[column.key] === best;
  const node = element("td", { className: isBest ? "best" : "" }, isBest ? `★ ${text}` : text);
  const interval = run.intervals?.[column.key];
  if (interval) node.append(element("small", {}, interval.map(column.show).join(" to ")));
  if (column.note && run[column.note]) node.append(element("small", {}, run[column.note]));
  return node;
}

/** @param {Run} run */
function remarks(run) {
  if (run.state !== "done") return [run.state];
  return run.model ? [] : ["no model on this machine"];
}
