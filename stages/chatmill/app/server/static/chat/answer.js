// @ts-check
/** One answer of one model: how it is asked for, and how it is shown. */

import { addParts, isSaid } from "./conversation.js";
import { figuresOf, notesOf, problemSentence } from "./figures.js";
import { MarkdownView } from "./markdown_view.js";
import { showTokens } from "./tokens.js";
import { ApiError, streamChat } from "../shared/api.js";
import { button, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {{ regenerate: () => unknown, goOn: () => unknown, copy: (answer: Answer) => unknown }} Actions */

const PACE = 250; // characters of an open block that may be read anew in a millisecond: long ones are drawn less often

/** Put what a model answers into `answer` as it comes; `changed` is called after each piece.
 * @param {Answer} answer
 * @param {object} request
 * @param {AbortSignal} signal
 * @param {() => unknown} changed
 */
export async function streamInto(answer, request, signal, changed) {
  Object.assign(answer, { finish: null, problem: null, timings: null });
  try {
    for await (const chunk of streamChat({ ...request, return_token_ids: true }, signal)) {
      take(answer, chunk);
      changed();
    }
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else if (error instanceof ApiError) Object.assign(answer, { finish: "error", problem: problemSentence(error) });
    else throw error;
  }
}

/** @param {Answer} answer @param {import("../shared/api.js").Chunk} chunk */
function take(answer, chunk) {
  if (chunk.prompt_token_ids) Object.assign(answer, { promptIds: chunk.prompt_token_ids, ids: [] });
  if (chunk.timings) answer.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  addParts(answer.parts, choice.delta.parts ?? [{ kind: "text", text: choice.delta.content ?? "" }]);
  for (const id of choice.token_ids ?? []) answer.ids.push(id);
  answer.finish = choice.finish_reason ?? answer.finish;
}

/** An answer on the page; what comes is shown at most once in each frame. */
export class AnswerView {
  #body = element("div", { className: "said" });
  #status = element("p", { className: "hint", hidden: true });
  #problem = element("div", { className: "problem", role: "alert", hidden: true });
  #figures = element("p", { className: "figures" });
  #actions = element("div", { className: "actions" });
  #tokens = element("div", { className: "token-view", hidden: true });
  /** @type {(MarkdownView | ToolView)[]} */
  #parts = []; // a view for each part
  #frame = 0;
  #drawn = 0; // when, in milliseconds

  /** @param {Answer} answer @param {Partial<Actions>} actions */
  constructor(answer, { regenerate = nothing, goOn = nothing, copy = nothing }) {
    this.answer = answer;
    this.actions = { regenerate, goOn, copy };
    const name = answer.model ?? "Imported answer";
    const heading = element("h2", { className: "who" }, name);
    this.node = element("section", { className: "answer", "aria-label": `Answer of ${name}` }, heading, this.#body);
    this.node.append(this.#status, this.#problem, this.#figures, this.#actions, this.#tokens);
    this.finish();
  }

  /** It is being asked for: `status` stands there until something comes.
   * @param {string} status
   */
  begin(status) {
    this.node.setAttribute("aria-busy", "true");
    this.#status.textContent = status;
    this.#status.hidden = false;
    this.#problem.hidden = this.#tokens.hidden = true;
    this.#figures.replaceChildren();
    this.#actions.replaceChildren();
  }

  /** Something came. */
  changed() {
    this.#frame ||= requestAnimationFrame((now) => this.#draw(now));
  }

  /** It is all there, or broke off. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show(true);
    this.node.removeAttribute("aria-busy");
    this.#status.hidden = true;
    this.#problem.hidden = !this.answer.problem;
    const again = button("Try again", () => this.actions.regenerate());
    this.#problem.replaceChildren(element("p", {}, this.answer.problem ?? ""), again);
    this.#figures.replaceChildren(...figures(this.answer));
    this.#actions.replaceChildren(...this.#buttons());
  }

  /** @param {number} now */
  #draw(now) {
    this.#frame = 0;
    const isEarly = now - this.#drawn < (this.#parts.at(-1)?.unsettled ?? 0) / PACE;
    if (isEarly) this.changed();
    else {
      this.#drawn = now;
      this.#show(false);
    }
  }

  /** @param {boolean} isWhole whether nothing more is awaited */
  #show(isWhole) {
    const { parts } = this.answer;
    const last = parts.length - 1;
    this.#status.hidden ||= parts.length > 0;
    for (let index = Math.max(this.#parts.length - 1, 0); index < parts.length; index += 1) {
      this.#parts[index] ??= this.#partView(parts, index);
      this.#parts[index].update(parts[index].text, isWhole || index < last);
    }
  }

  /** @param {Part[]} parts @param {number} index */
  #partView(parts, index) {
    const { kind } = parts[index];
    const node = element("div", { className: kind });
    if (kind !== "text") node.setAttribute("role", "group");
    this.#body.append(node);
    return kind === "text" ? new MarkdownView(node) : new ToolView(node, kind);
  }

  #buttons() {
    const { regenerate, goOn, copy } = this.actions;
    const said = isSaid(this.answer);
    const tokens = button("Tokens", () => this.#toggleTokens(tokens), { className: "quiet", ariaExpanded: "false" });
    return [
      ...(said ? [button("Copy", () => copy(this.answer), { className: "quiet" })] : []),
      ...(this.answer.ids.length ? [tokens] : []),
      ...(this.answer.problem ? [] : [button("Regenerate", regenerate, { className: "quiet last-only" })]),
      ...(said ? [button("Continue", goOn, { className: "quiet last-only" })] : []),
    ];
  }

  /** @param {HTMLElement} opener */
  async #toggleTokens(opener) {
    this.#tokens.hidden = !this.#tokens.hidden;
    opener.ariaExpanded = String(!this.#tokens.hidden);
    if (this.#tokens.hidden) return;
    try {
      await showTokens(this.answer, this.#tokens);
      this.#tokens.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#tokens.replaceChildren(element("p", { className: "problem", role: "alert" }, problemSentence(error)));
    }
  }
}

/** What the tool was asked, or what it answered. */
class ToolView {
  unsettled = 0; // its text comes whole

  /** @param {HTMLElement} node @param {Part["kind"]} kind */
  constructor(node, kind) {
    const name = kind === "call" ? "asked the calculator" : "it answered";
    this.words = element("code");
    node.setAttribute("aria-label", name);
    node.append(element("span", { className: "tool-name" }, name), " ", this.words);
  }

  /** @param {string} text */
  update(text) {
    this.words.textContent = text;
  }
}

/** What is told under an answer.
 * @param {Answer} answer
 */
function figures({ finish, timings, ids }) {
  const facts = figuresOf(timings, ids.length).map(({ value, unit, about }) =>
    element("span", { title: about }, element("b", {}, value), ` ${unit}`),
  );
  return [...facts, ...notesOf(finish, timings).map((note) => element("span", { className: "told" }, note))];
}

function nothing() {}
