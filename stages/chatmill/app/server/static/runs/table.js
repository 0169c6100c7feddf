// @ts-check
/** The table of runs, which can be sorted by any column; the best value of each is marked. */

import { beginsDescending, bestOf, COLUMNS, shown, sorted } from "./columns.js";
import { differences } from "./groups.js";
import { reportAddress } from "./requests.js";
import { tagsOf } from "./selection.js";
import { button, element } from "../shared/dom.js";

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
  #ticket = "";

  /** @param {HTMLElement} node @param {Set<string>} ticked @param {() => void} onTick
   * @param {(tag: string) => void} onTag is called with a tag that is clicked
   */
  constructor(node, ticked, onTick, onTag) {
    this.onTag = onTag;
    this.ticked = ticked;
    this.onTick = onTick;
    const heads = COLUMNS.map((column) => this.#head(column));
    const first = element("th", { scope: "col" }, element("span", { className: "unseen" }, "Ticked"));
    const head = element("thead", {}, element("tr", {}, first, ...heads));
    const caption = element("caption", { className: "unseen" }, "Runs of this repository");
    node.append(element("table", {}, caption, head, this.#body));
  }

  /** Show these runs; the ticket opens their reports.
   * @param {Run[]} runs
   * @param {string} ticket
   */
  show(runs, ticket) {
    this.#runs = runs;
    this.#ticket = ticket;
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
    if (run.note) head.append(element("small", { className: "note", title: run.note }, run.note), ...this.#tags(run));
    if (run.problem) head.append(element("small", { className: "bad" }, run.problem));
    return head;
  }

  /** @param {Run} run */
  #tags(run) {
    const label = (/** @type {string} */ tag) => ({ className: "tag", "aria-label": `Only runs with ${tag}` });
    return tagsOf(run.note).map((tag) => button(tag, () => this.onTag(tag), label(tag)));
  }

  /** @param {Run} run */
  #report(run) {
    const properties = { href: reportAddress(run.name, this.#ticket), target: "_blank", rel: "noopener" };
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
