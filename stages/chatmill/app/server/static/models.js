/** The models that can be chosen, and what is known of them. */

import { fetchModels, findRuns } from "./api.js";
import { element } from "./dom.js";

const UNITS = [
  ["GB", 1e9],
  ["MB", 1e6],
  ["KB", 1e3],
];

/** The two choosers of models, and a list of what is known of the first. */
export class Models {
  all = [];

  constructor({ model, beside, about }) {
    Object.assign(this, { model, beside, about });
  }

  /** Ask the server which models there are; runs among `wanted` that it has not looked for yet are looked for. */
  async load(wanted = []) {
    this.all = await fetchModels();
    if (wanted.some((id) => id && !this.find(id))) {
      await findRuns();
      this.all = await fetchModels();
    }
  }

  /** A model by its id; undefined where the server has none. */
  find(id) {
    return this.all.find((model) => model.id === id);
  }

  /** Show the models of a conversation as chosen. */
  choose([model, beside = ""]) {
    this.model.replaceChildren(...this.all.map(option));
    this.beside.replaceChildren(element("option", { value: "" }, "none"), ...this.all.map(option));
    this.model.value = model;
    this.beside.value = beside;
    this.about.replaceChildren(...facts(this.find(model)));
  }

  /** The ids that are chosen: one, or two; none before the models are known. */
  chosen() {
    return [this.model.value, this.beside.value].filter(Boolean);
  }
}

function option({ id, loaded }) {
  return element("option", { value: id }, loaded ? id : `${id} (not loaded)`);
}

function facts(model) {
  if (!model) return [];
  const rows = [
    ["Name", model.id],
    ["Runs on", [model.engine, model.device].filter(Boolean).join(", ")],
    ["Size", model.size && sized(model.size)],
    ["Context", model.max_model_len && `${model.max_model_len.toLocaleString("en")} tokens`],
    ["Template", model.template],
    ["Tools", model.tools?.join(", ") || (model.loaded && "none")],
  ];
  if (!model.loaded) rows.push(["Loaded", "by its first answer"]);
  const known = rows.filter(([, value]) => value);
  return known.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
}

function sized(bytes) {
  const [unit, size] = UNITS.find(([, least]) => bytes >= least) ?? ["bytes", 1];
  return `${(bytes / size).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}
