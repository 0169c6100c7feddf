// @ts-check
/** One answer of one model: how it is requested, and how it is shown. */

import { addParts, hasText } from "./conversation.js";
import { statsOf, warningsOf, problemSentence } from "./answer_stats.js";
import { badgeOf, nameOf } from "./model_description.js";
import { MarkdownView } from "./markdown_view.js";
import { showTokens } from "./tokens.js";
import { ApiError, streamChat } from "../shared/api.js";
import { button, element, withCode } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {{ regenerate: () => unknown, goOn: () => unknown, copy: (answer: Answer) => unknown }} Actions */

const PACE = 250; // characters of an open block parsed again per millisecond: longer blocks are drawn less often

/** Stream a model's answer into `answer`; `changed` is called after each chunk.
 * @param {Answer} answer
 * @param {object} request
 * @param {AbortSignal} signal
 * @param {() => unknown} changed
 */
export async function streamInto(answer, request, signal, changed) {
  Object.assign(answer, { finish: null, problem: null, timings: null });
  try {
    for await (const chunk of streamChat({ ...request, return_token_ids: true }, signal)) {
      applyChunk(answer, chunk);
      changed();
    }
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else if (error instanceof ApiError) Object.assign(answer, { finish: "error", problem: problemSentence(error) });
    else throw error;
  }
}

/** @param {Answer} answer @param {import("../shared/api.js").Chunk} chunk */
function applyChunk(answer, chunk) {
  if (chunk.prompt_token_ids) Object.assign(answer, { promptIds: chunk.prompt_token_ids, ids: [] });
  if (chunk.timings) answer.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  addParts(answer.parts, choice.delta.parts ?? [{ kind: "text", text: choice.delta.content ?? "" }]);
  for (const id of choice.token_ids ?? []) answer.ids.push(id);
  answer.finish = choice.finish_reason ?? answer.finish;
}

/** An answer on the page, which is drawn at most once in each frame. */
export class AnswerView {
  #body = element("div", { className: "content" });
  #status = element("p", { className: "hint", hidden: true });
  #problem = element("div", { className: "problem", role: "alert", hidden: true });
  #stats = element("p", { className: "stats", hidden: true });
  #warnings = element("p", { className: "warnings" });
  #actions = element("div", { className: "actions" });
  #tokens = element("div", { className: "token-view", hidden: true });
  /** @type {(MarkdownView | ToolView)[]} */
  #parts = []; // a view for each part
  #frame = 0;
  #drawn = 0; // time of the last drawing, in milliseconds

  /** @param {Answer} answer @param {Partial<Actions>} actions */
  constructor(answer, { regenerate = noop, goOn = noop, copy = noop }) {
    this.answer = answer;
    this.actions = { regenerate, goOn, copy };
    const name = answer.model === null ? "imported answer" : nameOf(answer.model);
    const heading = element("h2", { ...badgeOf(answer.model), title: answer.model ?? "" }, name);
    const group = { className: "answer", role: "group", "aria-label": `Answer of ${name}` };
    this.node = element("div", group, heading, this.#body);
    this.node.append(this.#status, this.#problem, this.#warnings, this.#actions, this.#stats, this.#tokens);
    this.finish();
  }

  /** Show that the answer was requested; `status` is shown until the first chunk.
   * @param {string} status
   */
  begin(status) {
    this.node.setAttribute("aria-busy", "true");
    this.#status.textContent = status;
    this.#status.hidden = false;
    this.#problem.hidden = this.#tokens.hidden = true;
    this.#stats.replaceChildren();
    this.#warnings.replaceChildren();
    this.#actions.replaceChildren();
  }

  /** Draw the answer in the next frame. */
  changed() {
    this.#frame ||= requestAnimationFrame((now) => this.#draw(now));
  }

  /** Show the answer as it ended: complete, stopped or with an error. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show(true);
    this.node.removeAttribute("aria-busy");
    this.#status.hidden = true;
    this.#problem.hidden = !this.answer.problem;
    const again = button("Try again", () => this.actions.regenerate());
    this.#problem.replaceChildren(element("p", {}, ...withCode(this.answer.problem ?? "")), again);
    const { finish, timings, ids } = this.answer;
    this.#stats.replaceChildren(...statsOf(timings, ids.length).map(figure));
    this.#warnings.replaceChildren(...warningsOf(finish, timings).map((text) => element("span", {}, text)));
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

  /** @param {boolean} isComplete */
  #show(isComplete) {
    const { parts } = this.answer;
    const last = parts.length - 1;
    this.#status.hidden ||= parts.length > 0;
    for (let index = Math.max(this.#parts.length - 1, 0); index < parts.length; index += 1) {
      this.#parts[index] ??= this.#partView(parts, index);
      this.#parts[index].update(parts[index].text, isComplete || index < last);
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
    const isAnswered = hasText(this.answer);
    const closed = { className: "quiet", ariaExpanded: "false" };
    const figures = button("Figures", () => this.#toggleFigures(figures), closed);
    const tokens = button("Tokens", () => this.#toggleTokens(tokens), closed);
    return [
      ...(isAnswered ? [button("Copy", () => copy(this.answer), { className: "quiet" })] : []),
      ...(this.answer.ids.length ? [tokens] : []),
      ...(this.answer.timings ? [figures] : []),
      ...(this.answer.problem ? [] : [button("Regenerate", regenerate, { className: "quiet last-only" })]),
      ...(isAnswered ? [button("Continue", goOn, { className: "quiet last-only" })] : []),
    ];
  }

  /** @param {HTMLElement} opener */
  #toggleFigures(opener) {
    this.#stats.hidden = !this.#stats.hidden;
    opener.ariaExpanded = String(!this.#stats.hidden);
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
      const words = withCode(problemSentence(error));
      this.#tokens.replaceChildren(element("p", { className: "problem", role: "alert" }, ...words));
    }
  }
}

/** A call of the tool, or its output. */
class ToolView {
  unsettled = 0; // its text comes in one chunk

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

/** A figure under an answer.
 * @param {import("./answer_stats.js").Statistic} statistic
 */
function figure({ value, unit, about }) {
  return element("span", { title: about }, element("b", {}, value), ` ${unit}`);
}

function noop() {}
