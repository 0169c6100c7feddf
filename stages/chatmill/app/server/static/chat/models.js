// @ts-check
/** The models that can be chosen, and the description of the chosen one. */

import { describeModel, learnModels, nameOf } from "./model_description.js";
import { fetchModels, findRuns } from "../shared/api.js";
import { element } from "../shared/dom.js";

/** @typedef {import("../shared/api.js").Model} Model */

/** The two selects of models, and the description of the first model. */
export class Models {
  /** @type {Model[]} */
  all = [];

  /** @param {{ model: HTMLSelectElement, beside: HTMLSelectElement, about: HTMLElement }} nodes */
  constructor({ model, beside, about }) {
    this.model = model;
    this.beside = beside;
    this.about = about;
  }

  /** Fetch the list of models; if one of `requested` is missing, have the server look for its runs first.
   * @param {string[]} requested
   */
  async load(requested = []) {
    this.all = await fetchModels();
    if (requested.some((id) => id && !this.find(id))) {
      await findRuns();
      this.all = await fetchModels();
    }
    learnModels(this.all);
  }

  /** The model with an id; undefined if the server has none.
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
    const facts = describeModel(this.find(model));
    this.about.replaceChildren(
      ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    );
  }

  /** The chosen ids: one or two; none before the models are loaded. */
  chosen() {
    return [this.model.value, this.beside.value].filter(Boolean);
  }
}

/** @param {Model} model */
function option({ id, loaded }) {
  return element("option", { value: id, title: id }, loaded ? nameOf(id) : `${nameOf(id)} (not loaded)`);
}
