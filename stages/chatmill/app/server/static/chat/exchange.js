// @ts-check
/** A message of the user, and the answer of each model to it. */

import { AnswerView } from "./answer.js";
import { button, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("./conversation.js").Exchange} Exchange */
/** @typedef {{ edit: (view: ExchangeView, text: string) => unknown, copy: (answer: Answer) => unknown,
 *   regenerate: (view: ExchangeView, column: number) => unknown,
 *   goOn: (view: ExchangeView, column: number) => unknown }} Actions which get the exchange's view */

/** An exchange on the page. */
export class ExchangeView {
  /** @type {(AnswerView | null)[]} */
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

  /** Show the answer of a column, or a button that requests it.
   * @param {number} column
   */
  showAnswer(column) {
    const answer = this.exchange.answers[column];
    const { regenerate, goOn, copy } = this.actions;
    const actions = { regenerate: () => regenerate(this, column), goOn: () => goOn(this, column), copy };
    const view = answer ? new AnswerView(answer, actions) : null;
    const node = view?.node ?? element("div", { className: "answer" }, button("Answer", actions.regenerate));
    const before = this.#columns.children[column];
    if (before) before.replaceWith(node);
    else this.#columns.append(node);
    this.answers[column] = view;
    return view;
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
    const replaced = "This message and what follows it are replaced.";
    const hint = element("p", { className: "hint" }, replaced);
    this.#question.replaceChildren(heading(), field, hint, element("div", { className: "choices" }, cancel, send));
    field.focus();
  }

  /** @param {string} text */
  #finishEdit(text) {
    if (text.trim()) this.actions.edit(this, text);
  }

  #showQuestion(focus = false) {
    const edit = button("Edit", () => this.edit(), { className: "quiet edit", "aria-label": "Edit your message" });
    const words = element("div", { className: "words" }, this.exchange.asked);
    this.#question.replaceChildren(heading(), words, element("div", { className: "actions" }, edit));
    if (focus) edit.focus();
  }
}

function heading() {
  return element("h2", { className: "who" }, "You");
}
