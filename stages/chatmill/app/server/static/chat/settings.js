// @ts-check
/** The controls of sampling: they start with the server's defaults, and changed settings are saved. */

import { CONTROLS, rangeOf, requestValues, withSetting } from "./sampling.js";
import { load, save } from "./local_storage.js";
import { byId, element } from "../shared/dom.js";

/** @typedef {import("./sampling.js").Control} Control */
/** @typedef {import("./sampling.js").Changed} Changed */

const NAME = "sampling";
const STOPS = "Stop texts";

/** The controls inside a node; only settings that differ from the server's defaults are saved and sent. */
export class Settings {
  /** @type {Record<string, number>} */
  #defaults = {};
  /** @type {Map<string, HTMLInputElement>} */
  #inputs = new Map();
  #stops = element("textarea", { id: "stop-texts", rows: 2, spellcheck: false });
  #changed = load(NAME, /** @type {Changed} */ ({}));

  /** @param {HTMLElement} node */
  constructor(node) {
    for (const control of CONTROLS) node.append(this.#row(control));
    const hint = element("small", { id: "stop-hint" }, "an answer ends before them; one per line, \\n is a line end");
    this.#stops.setAttribute("aria-describedby", hint.id);
    this.#stops.addEventListener("input", () => this.#save("stop", this.#stops.value));
    node.append(element("div", { className: "control tall" }, label(STOPS, this.#stops), this.#stops, hint));
    this.#show();
  }

  /** Show the defaults of a model; undefined if they are not known yet.
   * @param {Record<string, number> | undefined} defaults
   */
  setDefaults(defaults) {
    this.#defaults = defaults ?? {};
    this.#show();
  }

  /** Reset all settings to the server's defaults. */
  reset() {
    this.#changed = {};
    save(NAME, {});
    this.#show();
  }

  /** The parameters of a request; an invalid value is left out, and marked in its control. */
  values() {
    return requestValues(this.#changed);
  }

  /** The temperature that a request will have; undefined if it is the model's. */
  get temperature() {
    return this.#changed.temperature ?? this.#defaults.temperature;
  }

  /** Change a setting.
   * @param {string} name
   * @param {number} value
   */
  set(name, value) {
    this.#save(name, value);
    this.#show();
  }

  /** The labels of controls with invalid values. */
  invalid() {
    return CONTROLS.filter(({ name }) => !this.#inputs.get(name)?.validity.valid).map(({ label }) => label);
  }

  /** @param {Control} control */
  #row({ name, label: text, hint, ...limits }) {
    const input = element("input", { type: "number", id: `setting-${name}`, inputMode: "decimal", ...limits });
    const about = element("small", { id: `hint-${name}` }, hint);
    input.setAttribute("aria-describedby", about.id);
    input.addEventListener("input", () => this.#read(name, input));
    this.#inputs.set(name, input);
    return element("div", { className: "control" }, label(text, input), input, about);
  }

  /** @param {string} name @param {HTMLInputElement} input */
  #read(name, input) {
    const { valid } = input.validity;
    input.setAttribute("aria-invalid", String(!valid));
    const hint = CONTROLS.find((control) => control.name === name);
    if (hint) this.#hint(input).textContent = valid ? hint.hint : `expected ${rangeOf(hint)}`;
    this.#hint(input).classList.toggle("bad", !valid);
    if (input.validity.valid) this.#save(name, input.value === "" ? null : input.valueAsNumber);
  }

  /** @param {HTMLInputElement} input */
  #hint(input) {
    return byId(`hint-${input.id.replace(/^setting-/, "")}`, HTMLElement);
  }

  /** @param {string} name @param {number | string | null} value */
  #save(name, value) {
    this.#changed = withSetting(this.#changed, name, value, this.#defaults);
    save(NAME, this.#changed);
    this.#mark();
  }

  #show() {
    for (const [name, input] of this.#inputs) {
      input.value = String(this.#changed[name] ?? this.#defaults[name] ?? "");
      input.placeholder = name === "seed" ? "random" : String(this.#defaults[name] ?? "the model's");
      if (input.ariaInvalid === "true") this.#read(name, input);
    }
    this.#stops.value = this.#changed.stop ?? "";
    this.#mark();
  }

  #mark() {
    for (const [name, input] of this.#inputs) mark(input, name in this.#changed);
    mark(this.#stops, "stop" in this.#changed);
  }
}

/** @param {HTMLElement} input @param {boolean} isChanged */
function mark(input, isChanged) {
  input.parentElement?.classList.toggle("changed", isChanged);
}

/** @param {string} text @param {HTMLElement} input */
function label(text, input) {
  return element("label", { htmlFor: input.id }, text);
}
