// @ts-check
/** The controls of sampling: they start with the server's defaults, and changed settings are saved and sent. */

import { byId, element } from "../shared/dom.js";

/** @typedef {{ name: string, label: string, min: number, max?: number, step: number, hint: string }} Control */
/** @typedef {Record<string, number>} Values of controls, by their names */

const NAME = "chatmill.sampling"; // in the browser's local storage

/** @type {Control[]} */
const CONTROLS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.01, hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: 0.001, hint: "only the likeliest with this sum" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "only this many of the likeliest; 0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.001, hint: "least probability, relative to the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.01, hint: "1: none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "empty: random" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "of an answer" },
];

/** The controls inside a node; only settings that differ from the server's defaults are saved and sent. */
export class Settings {
  /** @type {Values} */
  #defaults = {};
  #changed = stored();
  /** @type {Map<string, HTMLInputElement>} */
  #inputs = new Map();

  /** @param {HTMLElement} node */
  constructor(node) {
    for (const control of CONTROLS) node.append(this.#row(control));
    this.#show();
  }

  /** Show the defaults of a model; undefined if they are not known yet.
   * @param {Values | undefined} defaults
   */
  setDefaults(defaults = {}) {
    this.#defaults = defaults;
    this.#show();
  }

  /** Reset all settings to the server's defaults. */
  reset() {
    this.#save({});
    this.#show();
  }

  /** The parameters of a request; an invalid value is left out, and marked in its control. */
  values() {
    return this.#changed;
  }

  /** Whether the same prompt has the same answer; false if the model's temperature is not known. */
  get isGreedy() {
    return (this.#changed.temperature ?? this.#defaults.temperature) === 0;
  }

  /** The labels of controls with invalid values. */
  invalid() {
    return CONTROLS.filter(({ name }) => !this.#inputs.get(name)?.validity.valid).map(({ label }) => label);
  }

  /** @param {Control} control */
  #row(control) {
    const { name, label, hint, ...limits } = control;
    const input = element("input", { type: "number", id: `setting-${name}`, inputMode: "decimal", ...limits });
    const about = element("small", { id: `hint-${name}` }, hint);
    input.setAttribute("aria-describedby", about.id);
    input.addEventListener("input", () => this.#read(control, input));
    this.#inputs.set(name, input);
    return element("div", { className: "control" }, element("label", { htmlFor: input.id }, label), input, about);
  }

  /** Save what was typed; an empty or default value is no change, and an invalid one is told.
   * @param {Control} control @param {HTMLInputElement} input
   */
  #read({ name, hint, min, max, step }, input) {
    const { valid } = input.validity;
    const about = byId(`hint-${name}`, HTMLElement);
    const kind = step === 1 ? "a whole number" : "a number";
    about.textContent = valid ? hint : `expected ${kind} from ${min} ${max === undefined ? "on" : `to ${max}`}`;
    about.classList.toggle("bad", !valid);
    input.setAttribute("aria-invalid", String(!valid));
    if (!valid) return;
    const { [name]: _, ...others } = this.#changed;
    const value = input.valueAsNumber; // NaN if the input is empty
    this.#save(Number.isNaN(value) || value === this.#defaults[name] ? others : { ...others, [name]: value });
  }

  /** @param {Values} changed */
  #save(changed) {
    this.#changed = changed;
    try {
      localStorage.setItem(NAME, JSON.stringify(changed));
    } catch (error) {
      console.info(`the settings are not saved: ${error}`); // the browser stores nothing
    }
  }

  #show() {
    for (const control of CONTROLS) {
      const input = this.#inputs.get(control.name);
      if (!input) continue;
      const byDefault = this.#defaults[control.name];
      input.value = String(this.#changed[control.name] ?? byDefault ?? "");
      input.placeholder = control.name === "seed" ? "random" : String(byDefault ?? "the model's");
      if (input.ariaInvalid === "true") this.#read(control, input);
    }
  }
}

/** @returns {Values} */
function stored() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "{}");
  } catch {
    return {}; // the browser stores nothing
  }
}
