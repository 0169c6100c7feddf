/** How tokens are chosen and where an answer ends: controls that begin with the server's defaults, and are kept. */

import { element } from "./dom.js";
import { keep, recall } from "./kept.js";

const NAME = "sampling";
const CONTROLS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.01, hint: "0: the likeliest token, always" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: 0.001, hint: "only the likeliest with this probability" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "only so many of the likeliest; 0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.001, hint: "only those this likely, beside the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.01, hint: "1: none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.01, hint: "0: none" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "empty: at random" },
  { name: "max_tokens", label: "Most tokens", min: 1, step: 1, hint: "of an answer" },
];
const STOPS = "Stop texts";

/** The controls, inside of a node; only what differs from the server's defaults is kept and sent. */
export class Settings {
  #defaults = {};
  #inputs = new Map();
  #stops = element("textarea", { id: "stop-texts", rows: 2, spellcheck: false });
  #changed = recall(NAME, {});

  constructor(node) {
    for (const control of CONTROLS) node.append(this.#row(control));
    const hint = element("small", { id: "stop-hint" }, "an answer ends before it; one on each line, \\n is a line end");
    this.#stops.setAttribute("aria-describedby", hint.id);
    this.#stops.addEventListener("input", () => this.#keep("stop", this.#stops.value));
    node.append(element("div", { className: "control tall" }, label(STOPS, this.#stops), this.#stops, hint));
    this.#show();
  }

  /** Show the defaults of a model; null where it does not tell them yet. */
  setDefaults(defaults) {
    this.#defaults = defaults ?? {};
    this.#show();
  }

  /** Have everything as the server has it. */
  reset() {
    this.#changed = {};
    keep(NAME, {});
    this.#show();
  }

  /** What a request says of it; a value that may not be is left out, and marked in its control. */
  values() {
    const { stop = "", ...numbers } = this.#changed;
    const texts = stop.split("\n").filter(Boolean).map(unescaped);
    return texts.length ? { ...numbers, stop: texts } : numbers;
  }

  /** The labels of controls whose values may not be. */
  mistakes() {
    return CONTROLS.filter(({ name }) => !this.#inputs.get(name).validity.valid).map(({ label }) => label);
  }

  #row({ name, label: text, hint, ...limits }) {
    const input = element("input", { type: "number", id: `setting-${name}`, inputMode: "decimal", ...limits });
    const about = element("small", { id: `hint-${name}` }, hint);
    input.setAttribute("aria-describedby", about.id);
    input.addEventListener("input", () => this.#read(name, input));
    this.#inputs.set(name, input);
    return element("div", { className: "control" }, label(text, input), input, about);
  }

  #read(name, input) {
    input.setAttribute("aria-invalid", String(!input.validity.valid));
    if (input.validity.valid) this.#keep(name, input.value === "" ? null : input.valueAsNumber);
  }

  #keep(name, value) {
    if (value === null || value === "" || value === this.#defaults[name]) delete this.#changed[name];
    else this.#changed[name] = value;
    keep(NAME, this.#changed);
    this.#mark();
  }

  #show() {
    for (const [name, input] of this.#inputs) {
      input.value = this.#changed[name] ?? this.#defaults[name] ?? "";
      input.placeholder = name === "seed" ? "random" : String(this.#defaults[name] ?? "the model's");
      input.setAttribute("aria-invalid", "false");
    }
    this.#stops.value = this.#changed.stop ?? "";
    this.#mark();
  }

  #mark() {
    for (const [name, input] of [...this.#inputs, ["stop", this.#stops]]) {
      input.parentElement?.classList.toggle("changed", name in this.#changed);
    }
  }
}

function label(text, input) {
  return element("label", { htmlFor: input.id }, text);
}

/** Text in which `\n`, `\t` and `\\` are a line end, a tab and a backslash. */
function unescaped(text) {
  return text.replace(/\\[nt\\]/g, (mark) => ({ "\\n": "\n", "\\t": "\t", "\\\\": "\\" })[mark]);
}
