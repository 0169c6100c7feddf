// @ts-check
/** What is known of the models: their names and colours, and a description. */

/** @typedef {import("../shared/api.js").Model} Model */

/** @type {[string, number][]} */
const UNITS = [
  ["GB", 1e9],
  ["MB", 1e6],
  ["KB", 1e3],
];

/** @type {Record<string, string>} */
const OF_PROJECT = { "data/export/onnx": "this project's model", "data/model": "this project's model in PyTorch" };

const HUES = 6; // colours of names, in chat.css

/** @type {Map<string, Model>} */
let known = new Map();

/** Set the models that the server has.
 * @param {Model[]} models
 */
export function learnModels(models) {
  known = new Map(models.map((model) => [model.id, model]));
}

/** What a model is called on the page: a folder's last name, or that of a run.
 * @param {string} id
 */
export function nameOf(id) {
  return Object.hasOwn(OF_PROJECT, id) ? OF_PROJECT[id] : id.replace(/[\\/]+$/, "").replace(/^.*[\\/](?=.)/, "");
}

/** The attributes that give a model's name its letter and colour; null is a model that is not known.
 * @param {string | null} id
 */
export function badgeOf(id) {
  if (id === null) return { className: "who" };
  const hue = Math.max([...known.keys()].indexOf(id), 0) % HUES;
  return { className: `who badge hue${hue}`, "data-letter": [...nameOf(id)][0]?.toUpperCase() ?? "" };
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
    ["Size", model.size && formatBytes(model.size)],
    ["Context", model.max_model_len && `${model.max_model_len.toLocaleString("en")} tokens`],
    ["Template", model.template],
    ["Tools", model.tools?.join(", ") || (model.loaded && "none")],
    ["Loaded", !model.loaded && "with its first answer"],
  ];
  return rows.flatMap(([name, value]) => (value ? [[name, value]] : []));
}

/** Bytes as text: 999 bytes, 1.5 MB.
 * @param {number} bytes
 */
export function formatBytes(bytes) {
  const [unit, size] = UNITS.find(([, least]) => bytes >= least) ?? ["bytes", 1];
  return `${(bytes / size).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}
