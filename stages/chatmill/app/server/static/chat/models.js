// @ts-check
/** The models that can be chosen, and what is known of them. */

import { factsOf } from "./model_facts.js";
import { fetchModels, findRuns } from "../shared/api.js";
import { element } from "../shared/dom.js";

/** @typedef {import("../shared/api.js").Model} Model */

/** The two choosers of models, and a list of what is known of the first. */
export class Models {
  /** @type {Model[]} */
  all = [];

  /** @param {{ model: HTMLSelectElement, beside: HTMLSelectElement, about: HTMLElement }} nodes */
  constructor({ model, beside, about }) {
    this.model = model;
    this.beside = beside;
    this.about = about;
  }

  /** Ask the server which models there are; runs among `wanted` that it has not looked for yet are looked for.
   * @param {string[]} wanted
   */
  async load(wanted = []) {
    this.all = await fetchModels();
    if (wanted.some((id) => id && !this.find(id))) {
      await findRuns();
      this.all = await fetchModels();
    }
  }

  /** A model by its id; undefined where the server has none.
   * @param {string | null} id
   */
  find(id) {
    return this.all.find((model) => model.id === id);
  }

  /** Show the models of a conversation as chosen.
   * @param {string[]} ids
   */
  choose([model, beside = ""]) {
    this.model.replaceChildren(...this.all.map(option));
    this.beside.replaceChildren(element("option", { value: "" }, "none"), ...this.all.map(option));
    this.model.value = model;
    this.beside.value = beside;
    const facts = factsOf(this.find(model));
    this.about.replaceChildren(
      ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    );
  }

  /** The ids that are chosen: one, or two; none before the models are known. */
  chosen() {
    return [this.model.value, this.beside.value].filter(Boolean);
  }
}

/** @param {Model} model */
function option({ id, loaded }) {
  return element("option", { value: id }, loaded ? id : `${id} (not loaded)`);
}
