// @ts-check
/** The verdict on the ticked runs: asked for by a button, told as it comes. */

import { streamEvents } from "../shared/api.js";
import { button, element, pluralize } from "../shared/dom.js";

/** @typedef {import("./selection.js").Run} Run */
/** @typedef {{ measured?: string, problem?: string, sentences?: string[], heads?: string[], note?: string,
 *   number?: string }} VerdictEvent a run that was measured, or the verdict, or why there is none */

const MAX_SIDES = 4; // of a verdict
const ABOUT = "Tick two runs, or all seeds of two kinds of runs: on the test set a verdict says which is better.";

/** The part of the page with the verdict, inside a node. */
export class VerdictView {
  /** @type {AbortController | null} */
  #running = null;
  /** @type {string[][] | null} */
  #sides = null;
  #hint = element("p", { className: "hint" });
  #result = element("div", { role: "status" });
  /** @type {string[]} */
  #others = []; // runs of other seeds
  #seeds = button("", () => this.onSeeds(this.#others));
  #ask = button("Which is better?", () => this.#judge(), { className: "first" });
  #stop = button("Stop", () => this.#running?.abort(), { hidden: true });

  /** @param {HTMLElement} node @param {(names: string[]) => void} onSeeds ticks runs of other seeds, too */
  constructor(node, onSeeds) {
    this.onSeeds = onSeeds;
    node.append(this.#hint, element("div", { className: "choosers" }, this.#ask, this.#seeds, this.#stop));
    node.append(this.#result);
    this.show([], []);
  }

  /** Offer a verdict on these runs.
   * @param {Run[]} ticked
   * @param {Run[]} runs all of them
   */
  show(ticked, runs) {
    this.#others = ticked.length > 1 ? untickedSeeds(ticked, runs).map(({ name }) => name) : [];
    this.#seeds.hidden = !this.#others.length;
    this.#seeds.textContent = `Tick their ${pluralize(this.#others.length, "other seed")}`;
    this.#sides = sidesOf(ticked);
    this.#ask.disabled = !this.#sides || this.#running !== null;
    const command = this.#sides && element("code", {}, compareCommand(this.#sides));
    this.#hint.replaceChildren(...(command ? ["In a terminal: ", command] : [ABOUT]));
  }

  async #judge() {
    if (!this.#sides) return;
    const sides = this.#sides;
    const total = sides.flat().length;
    this.#running = new AbortController();
    this.#ask.disabled = true;
    this.#stop.hidden = false;
    let done = 0;
    this.#tell(`Measuring ${pluralize(total, "run")}, each in half a minute …`);
    try {
      for await (const event of streamEvents("/runs/verdict", { sides }, this.#running.signal)) {
        if (event.measured) this.#tell(`${event.measured} is measured, ${++done} of ${total} …`);
        else if (event.problem) this.#tell(event.problem, "problem");
        else this.#conclude(event);
      }
    } catch (error) {
      const stopped = this.#running.signal.aborted;
      const why = error instanceof Error ? error.message : String(error);
      this.#tell(stopped ? "Stopped." : why, stopped ? "hint" : "problem");
    }
    this.#running = null;
    this.#stop.hidden = true;
    this.#ask.disabled = !this.#sides;
  }

  /** @param {string} text */
  #tell(text, className = "hint") {
    this.#result.replaceChildren(element("p", { className }, text));
  }

  /** @param {VerdictEvent} verdict */
  #conclude({ sentences = [], heads = [], note = "", number = "" }) {
    const address = { href: `/runs/verdicts/${number}/report`, target: "_blank", rel: "noopener" };
    this.#result.replaceChildren(
      ...sentences.map((text) => element("p", { className: "verdict" }, text)),
      element("ul", {}, ...heads.map((head) => element("li", {}, head))),
      element("p", { className: "hint" }, note),
      element("p", {}, element("a", address, "The conversations on which they differ most")),
    );
  }
}

/** Runs by group, which differ by their seed alone; a run without parameters is a group by itself.
 * @param {Run[]} runs
 * @returns {Run[][]}
 */
function groupsOf(runs) {
  /** @type {Map<string, Run[]>} */
  const groups = new Map();
  for (const run of runs) {
    const key = run.group ?? run.name;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()];
}

/** The sides of a verdict on the ticked runs: their groups; if that is one, each run by itself. Null if there is none.
 * @param {Run[]} ticked
 * @returns {string[][] | null}
 */
export function sidesOf(ticked) {
  const groups = groupsOf(ticked);
  const sides = groups.length === 1 ? ticked.map((run) => [run]) : groups;
  const fits = sides.length >= 2 && sides.length <= MAX_SIDES && ticked.every((run) => run.model);
  return fits ? sides.map((side) => side.map((run) => run.name)) : null;
}

/** The runs of other seeds that the server names for every ticked run of a group.
 * @param {Run[]} ticked
 * @param {Run[]} runs
 */
export function untickedSeeds(ticked, runs) {
  const common = (/** @type {Run[]} */ [first, ...rest]) =>
    first.other_seeds.filter((rev) => rest.every((run) => run.other_seeds.includes(rev)));
  const revs = new Set(groupsOf(ticked).flatMap(common));
  return runs.filter((run) => revs.has(run.rev));
}

/** The command that gives the same verdict in a terminal.
 * @param {string[][]} sides
 */
export function compareCommand(sides) {
  return `chatmill compare ${sides.map((names) => quoted(names.join(","))).join(" ")} --data data/chat/test.jsonl`;
}

/** A word of a shell.
 * @param {string} text
 */
function quoted(text) {
  return /^[\w./,@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
