// @ts-check
/** The models that can be chosen, their names, and the description of the chosen one. */

import { fetchModels, findRuns } from "../shared/api.js";
import { element } from "../shared/dom.js";

/** @typedef {import("../shared/api.js").Model} Model */

/** @type {Record<string, string>} */
const OF_PROJECT = { "data/export/onnx": "this project's model", "data/model": "this project's model in PyTorch" };

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
    if (requested.every((id) => this.find(id))) return;
    await findRuns();
    this.all = await fetchModels();
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

/** What a model is called on the page: a folder's last name, or that of a run.
 * @param {string} id
 */
export function nameOf(id) {
  return Object.hasOwn(OF_PROJECT, id) ? OF_PROJECT[id] : id.replace(/[\\/]+$/, "").replace(/^.*[\\/](?=.)/, "");
}

/** Names and values of a model's properties; unknown ones are left out.
 * @param {Model | undefined} model
 * @returns {[string, string][]}
 */
export function describeModel(model) {
  if (!model) return [];
  /** @type {[string, string | undefined | false | 0][]} */
  const rows = [
    ["Path or run", model.id],
    ["Runs on", [model.engine, model.device].filter(Boolean).join(", ")],
    ["Size", model.size && `${(model.size / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`],
    ["Context", model.max_model_len && `${model.max_model_len.toLocaleString("en")} tokens`],
    ["Template", model.template],
    ["Tools", model.tools?.join(", ") || (model.loaded && "none")],
    ["Loaded", !model.loaded && "with its first answer"],
  ];
  return rows.flatMap(([name, value]) => (value ? [[name, value]] : []));
}

/** @param {Model} model */
function option({ id, loaded }) {
  return element("option", { value: id, title: id }, loaded ? nameOf(id) : `${nameOf(id)} (not loaded)`);
}
