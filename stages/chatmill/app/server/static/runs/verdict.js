// @ts-check
/** The verdict on the ticked runs: asked for by a button, told as it comes. */

import { compareCommand, sidesOf, untickedSeeds } from "./groups.js";
import { streamVerdict, verdictAddress } from "./requests.js";
import { button, element } from "../shared/dom.js";
import { pluralize } from "../shared/text_format.js";

/** @typedef {import("./requests.js").Run} Run */

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
    this.#running = new AbortController();
    this.#ask.disabled = true;
    this.#stop.hidden = false;
    const [sides, total] = [this.#sides, this.#sides.flat().length];
    let done = 0;
    this.#tell(`Measuring ${pluralize(total, "run")}, each in half a minute …`);
    try {
      for await (const event of streamVerdict(sides, this.#running.signal)) {
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

  /** @param {import("./requests.js").VerdictEvent} verdict */
  #conclude({ sentences = [], heads = [], note = "", number = "" }) {
    const address = { href: verdictAddress(number), target: "_blank", rel: "noopener" };
    this.#result.replaceChildren(
      ...sentences.map((text) => element("p", { className: "verdict" }, text)),
      element("ul", {}, ...heads.map((head) => element("li", {}, head))),
      element("p", { className: "hint" }, note),
      element("p", {}, element("a", address, "The conversations on which they differ most")),
    );
  }
}
