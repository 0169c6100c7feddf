// @ts-check
/** A message of the user, and the answer of each model to it. */

import { addParts, hasText } from "./conversation.js";
import { MarkdownView } from "./markdown.js";
import { nameOf } from "./models.js";
import { showTokens } from "./tokens.js";
import { ApiError, streamChat } from "../shared/api.js";
import { button, element, pluralize, sentence, withCode } from "../shared/dom.js";

/** @typedef {import("../shared/api.js").Chunk} Chunk */
/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("./conversation.js").Exchange} Exchange */
/** @typedef {{ edit: (view: ExchangeView, text: string) => unknown, copy: (answer: Answer) => unknown,
 *   regenerate: (view: ExchangeView, column: number) => unknown,
 *   goOn: (view: ExchangeView, column: number) => unknown }} Actions which get the exchange's view */

/** @type {Record<string, string>} */
const ENDS = {
  length: "The answer was cut off: it reached its maximum of tokens, or the end of the context.",
  stopped: "Stopped.",
};

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

/** @param {Answer} answer @param {Chunk} chunk */
function applyChunk(answer, chunk) {
  if (chunk.prompt_token_ids) Object.assign(answer, { promptIds: chunk.prompt_token_ids, ids: [] });
  if (chunk.timings) answer.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  addParts(answer.parts, choice.delta.parts ?? [{ kind: "text", text: choice.delta.content ?? "" }]);
  for (const id of choice.token_ids ?? []) answer.ids.push(id);
  answer.finish = choice.finish_reason ?? answer.finish;
}

/** An error as a sentence, with the time to wait if the server is busy.
 * @param {ApiError} error
 */
export function problemSentence({ message, retryAfter }) {
  return sentence(message) + (retryAfter ? ` Try again in ${pluralize(retryAfter, "second")}.` : "");
}

/** Sentences about how an answer ended and what was left out of its prompt.
 * @param {string | null} finish
 * @param {Timings | null} timings
 * @returns {string[]}
 */
export function warningsOf(finish, timings) {
  const dropped = timings?.dropped_messages ?? 0;
  const left = `The context was too short: the oldest ${pluralize(dropped, "message")} left out.`;
  const unread = `The model's tokenizer has no tokens for ${timings?.lost}: your message was read without them.`;
  const ended = finish && Object.hasOwn(ENDS, finish) ? [ENDS[finish]] : [];
  return [...ended, ...(dropped ? [left] : []), ...(timings?.lost ? [unread] : [])];
}

/** An exchange on the page. */
export class ExchangeView {
  /** @type {AnswerView[]} */
  answers = [];
  #question = element("div", { className: "question", role: "group", "aria-label": "You" });
  #columns = element("div", { className: "columns" });

  /** @param {Exchange} exchange @param {number} columns how many models answer @param {Actions} actions */
  constructor(exchange, columns, actions) {
    this.exchange = exchange;
    this.actions = actions;
    this.node = element("article", { className: "exchange" }, this.#question, this.#columns);
    this.#showQuestion();
    for (let column = 0; column < columns; column += 1) this.showAnswer(column);
  }

  /** Show the answer of a column.
   * @param {number} column
   */
  showAnswer(column) {
    const { regenerate, goOn, copy } = this.actions;
    const view = new AnswerView(this.exchange.answers[column], {
      regenerate: () => regenerate(this, column),
      goOn: () => goOn(this, column),
      copy,
    });
    if (this.answers[column]) this.answers[column].node.replaceWith(view.node);
    else this.#columns.append(view.node);
    this.answers[column] = view;
  }

  /** Let the user edit the message. */
  edit() {
    const field = element("textarea", { value: this.exchange.asked, "aria-label": "Your message", rows: 3 });
    const send = button("Ask again from here", () => this.#finishEdit(field.value), { className: "first" });
    const cancel = button("Cancel", () => this.#showQuestion(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#showQuestion(true);
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.#finishEdit(field.value);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const hint = element("p", { className: "hint" }, "This message and what follows it are replaced.");
    this.#question.replaceChildren(heading("You"), field, hint, element("div", { className: "choices" }, cancel, send));
    field.focus();
  }

  /** @param {string} text */
  #finishEdit(text) {
    if (text.trim()) this.actions.edit(this, text);
  }

  #showQuestion(focus = false) {
    const edit = button("Edit", () => this.edit(), { className: "quiet edit", "aria-label": "Edit your message" });
    const words = element("div", { className: "words" }, this.exchange.asked);
    this.#question.replaceChildren(heading("You"), words, element("div", { className: "actions" }, edit));
    if (focus) edit.focus();
  }
}

/** An answer on the page, which is drawn at most once in each frame. */
class AnswerView {
  #body = element("div", { className: "content" });
  #status = element("p", { className: "hint", hidden: true });
  #problem = element("div", { className: "problem", role: "alert", hidden: true });
  #warnings = element("p", { className: "warnings" });
  #actions = element("div", { className: "actions" });
  #tokens = element("div", { className: "token-view", hidden: true });
  /** @type {{ update: (text: string) => void }[]} */
  #parts = []; // a view for each part
  #frame = 0;

  /** @param {Answer} answer
   * @param {{ regenerate: () => unknown, goOn: () => unknown, copy: Actions["copy"] }} actions
   */
  constructor(answer, actions) {
    this.answer = answer;
    this.actions = actions;
    const name = answer.model === null ? "imported answer" : nameOf(answer.model);
    const group = { className: "answer", role: "group", "aria-label": `Answer of ${name}` };
    this.node = element("div", group, heading(name, answer.model ?? ""), this.#body);
    this.node.append(this.#status, this.#problem, this.#warnings, this.#actions, this.#tokens);
    this.finish();
  }

  /** Show that the answer was requested; `status` is shown until the first chunk.
   * @param {string} status
   */
  begin(status) {
    this.node.setAttribute("aria-busy", "true");
    this.#status.textContent = status;
    this.#status.hidden = false;
    this.#problem.hidden = true;
    this.#tokens.hidden = true;
    this.#warnings.replaceChildren();
    this.#actions.replaceChildren();
  }

  /** Draw the answer in the next frame. */
  changed() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#show();
    });
  }

  /** Show the answer as it ended: complete, stopped or with an error. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show();
    this.node.removeAttribute("aria-busy");
    const { finish, problem, timings } = this.answer;
    this.#status.hidden = true;
    this.#problem.hidden = !problem;
    const again = button("Try again", () => this.actions.regenerate());
    this.#problem.replaceChildren(element("p", {}, ...withCode(problem ?? "")), again);
    this.#warnings.replaceChildren(...warningsOf(finish, timings).map((text) => element("span", {}, text)));
    this.#actions.replaceChildren(...this.#buttons());
  }

  #show() {
    const { parts } = this.answer;
    this.#status.hidden ||= parts.length > 0;
    for (let index = Math.max(this.#parts.length - 1, 0); index < parts.length; index += 1) {
      this.#parts[index] ??= this.#partView(parts[index].kind);
      this.#parts[index].update(parts[index].text);
    }
  }

  /** @param {Part["kind"]} kind */
  #partView(kind) {
    const node = element("div", { className: kind });
    this.#body.append(node);
    if (kind === "text") return new MarkdownView(node);
    const name = kind === "call" ? "asked the calculator" : "it answered";
    const words = element("code");
    node.setAttribute("role", "group");
    node.setAttribute("aria-label", name);
    node.append(element("span", { className: "tool-name" }, name), " ", words);
    return { update: (/** @type {string} */ text) => (words.textContent = text) };
  }

  #buttons() {
    const { regenerate, goOn, copy } = this.actions;
    const { ids, problem } = this.answer;
    const isAnswered = hasText(this.answer);
    const tokens = button("Tokens", () => this.#toggleTokens(tokens), { className: "quiet", ariaExpanded: "false" });
    return [
      ...(isAnswered ? [button("Copy", () => copy(this.answer), { className: "quiet" })] : []),
      ...(ids.length ? [tokens] : []),
      ...(problem ? [] : [button("Regenerate", regenerate, { className: "quiet last-only" })]),
      ...(isAnswered ? [button("Continue", goOn, { className: "quiet last-only" })] : []),
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
      const words = withCode(problemSentence(error));
      this.#tokens.replaceChildren(element("p", { className: "problem", role: "alert" }, ...words));
    }
  }
}

/** @param {string} name */
function heading(name, title = "") {
  return element("h2", { className: "who", title }, name);
}
