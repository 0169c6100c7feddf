// @ts-check
/** The conversation that is open: what is asked, the answers to it, and how it is kept. */

import { streamInto } from "./answer.js";
import { isSaid, messagesFor, newAnswer, newConversation, textOf, titleOf } from "./conversation.js";
import { ExchangeView } from "./exchange.js";
import { tell } from "./notice.js";
import { opening } from "./opening.js";
import { announce, copy, hush } from "./spoken.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Exchange} Exchange */
/** @typedef {{ exchanges: HTMLElement, scroller: HTMLElement, start: HTMLElement, send: HTMLElement, stop: HTMLElement,
 *   system: HTMLTextAreaElement, model: HTMLSelectElement, beside: HTMLSelectElement }} Nodes */
/** @typedef {{ models: import("./models.js").Models, settings: import("./settings.js").Settings,
 *   history: import("./history.js").History, kept: (conversation: Conversation) => Promise<void>,
 *   focus: () => void }} Parts `kept` and `focus` are called when it was kept, and to go on writing */

const NEAR = 60; // pixels from the end at which the page goes on following what comes

/** One conversation with one model, or with two side by side. */
export class Talk {
  conversation = newConversation([]);
  /** @type {ExchangeView[]} */
  #views = [];
  /** @type {Map<Answer, AbortController>} */
  #running = new Map(); // answers that are on their way, and what stops them
  #keeping = 0; // how often it is being kept now

  /** @param {Nodes} nodes @param {Parts} parts */
  constructor(nodes, { models, settings, history, kept, focus }) {
    this.nodes = nodes;
    this.models = models;
    this.settings = settings;
    this.history = history;
    this.kept = kept;
    this.focus = focus;
  }

  /** Whether an answer is on its way. */
  get isRunning() {
    return this.#running.size > 0;
  }

  /** Whether all that was said is shown and kept, so that another version may take its place. */
  get isSettled() {
    return !this.isRunning && !this.#keeping;
  }

  /** Open a conversation, with the models that it was held with as far as they are here.
   * @param {Conversation} conversation
   */
  show(conversation) {
    const { all } = this.models;
    const present = conversation.models.filter((id) => this.models.find(id));
    if (all.length && present.length < conversation.models.length) {
      const names = conversation.models.join(" and ");
      tell(`This chat was held with ${names}, which is not here now: another model goes on.`);
    }
    this.conversation = conversation;
    this.nodes.system.value = conversation.system;
    this.hold(present.length ? present : all.slice(0, 1).map(({ id }) => id));
  }

  /** Go on with these models. One that comes in takes over what the first has said.
   * @param {string[]} models
   */
  hold(models) {
    const { exchanges } = this.conversation;
    this.conversation.models = models;
    for (const { answers } of exchanges) {
      models.forEach((_, column) => (answers[column] ??= structuredClone(answers[0])));
    }
    this.#views = exchanges.map((exchange) => this.#view(exchange));
    this.nodes.exchanges.replaceChildren(...this.#views.map(({ node }) => node));
    this.showModels();
    this.#showState();
    this.nodes.scroller.scrollTop = this.nodes.scroller.scrollHeight;
  }

  /** Show what is known of the models. */
  showModels() {
    this.models.choose(this.conversation.models);
    this.settings.setDefaults(this.models.find(this.conversation.models[0])?.defaults);
  }

  /** Whether an answer can be asked for; where a setting is in the way, the reader is told. */
  isReady() {
    if (this.isRunning || !this.models.all.length) return false;
    const invalid = this.settings.invalid();
    if (invalid.length) tell(`Settings that may not have their value: ${invalid.join(", ")}.`);
    return !invalid.length;
  }

  /** Ask every model of the conversation.
   * @param {string} text
   */
  async ask(text) {
    if (!this.isReady()) return;
    const { exchanges, models } = this.conversation;
    const exchange = { asked: text.toWellFormed(), answers: models.map(newAnswer) };
    const view = this.#view(exchange);
    exchanges.push(exchange);
    this.#views.push(view);
    this.nodes.exchanges.append(view.node);
    this.#follow(true);
    const answers = models.map((_, column) => this.#answer(view, column));
    await this.keep(); // the question outlives the page, whatever becomes of the answer
    await Promise.all(answers);
  }

  /** Let the user change what was asked last; whether that can be. */
  editLast() {
    const last = this.#views.at(-1);
    if (!last || this.isRunning) return false;
    last.edit();
    return true;
  }

  /** Let no more come of the answers that are on their way. */
  stop() {
    for (const controller of this.#running.values()) controller.abort();
  }

  /** Keep a conversation in this browser; say so where it cannot be. */
  async keep(held = this.conversation) {
    if (this.history.removed.has(held.id)) return;
    const { id } = held;
    held.updated = Date.now();
    this.#keeping += 1;
    try {
      await this.history.put(held);
    } catch (error) {
      tell(`This chat is not kept: ${error instanceof Error ? error.message : error}. Export it, or delete others.`);
      return;
    } finally {
      this.#keeping -= 1;
    }
    if (held.id !== id) tell("This chat was changed in another tab: this one goes on as a chat of its own.");
    await this.kept(held);
  }

  /** Have a model answer, or go on with what it has said; keep what came of it.
   * @param {ExchangeView} view
   * @param {number} column
   */
  async #answer(view, column, continues = false) {
    const held = this.conversation;
    const answer = view.exchange.answers[column];
    const shown = view.answers[column];
    const request = this.#request(view.exchange, column, continues);
    const controller = new AbortController();
    if (!this.isRunning) hush();
    this.#running.set(answer, controller);
    this.#showState();
    shown?.begin(this.models.find(answer.model)?.loaded ? "waiting …" : `loading ${answer.model} …`);
    try {
      await streamInto(answer, request, controller.signal, () => (shown?.changed(), this.#follow()));
    } finally {
      this.#running.delete(answer);
      shown?.finish();
    }
    this.#follow();
    this.#showState();
    announce(`${answer.model}: ${answer.problem ?? textOf(answer.parts)}`);
    await this.keep(held);
    if (!answer.problem) await this.#learn(answer.model);
  }

  /** @param {Exchange} exchange @param {number} column @param {boolean} continues */
  #request(exchange, column, continues) {
    const { model, parts } = exchange.answers[column];
    const continued = continues ? structuredClone(parts) : [];
    const index = this.conversation.exchanges.indexOf(exchange);
    const messages = messagesFor(this.conversation, column, index, continued);
    const more = continues ? { continue_final_message: true } : {};
    return { ...this.settings.values(), model, messages, truncation: "auto", ...more };
  }

  /** Ask for what is known of a model once it is loaded.
   * @param {string | null} id
   */
  async #learn(id) {
    if (this.models.find(id)?.loaded) return;
    await this.models.load();
    this.showModels();
  }

  /** Ask something else in place of an exchange, and of all that came after it.
   * @param {ExchangeView} view
   * @param {string} text
   */
  #edit(view, text) {
    if (!this.isReady()) return;
    const index = this.#views.indexOf(view);
    this.conversation.exchanges.length = index;
    for (const { node } of this.#views.splice(index)) node.remove();
    this.focus();
    this.ask(text);
  }

  /** Ask a model again; the answer that it gave stays where no other comes.
   * @param {ExchangeView} view
   * @param {number} column
   */
  async #regenerate(view, column) {
    if (!this.isReady()) return;
    const { answers } = view.exchange;
    const before = answers[column];
    answers[column] = newAnswer(this.conversation.models[column]);
    view.showAnswer(column);
    this.focus();
    await this.#answer(view, column);
    if (!answers[column].problem || isSaid(answers[column]) || !isSaid(before)) return;
    answers[column] = { ...before, problem: answers[column].problem };
    view.showAnswer(column);
    await this.keep();
  }

  /** @param {ExchangeView} view @param {number} column */
  async #goOn(view, column) {
    if (!this.isReady()) return;
    view.exchange.answers[column].model = this.conversation.models[column];
    view.showAnswer(column);
    this.focus();
    await this.#answer(view, column, true);
  }

  /** @param {Exchange} exchange */
  #view(exchange) {
    return new ExchangeView(exchange, Math.max(this.conversation.models.length, 1), {
      edit: (view, text) => this.#edit(view, text),
      regenerate: (view, column) => this.#regenerate(view, column),
      goOn: (view, column) => this.#goOn(view, column),
      copy: (answer) => copy(textOf(answer.parts)),
    });
  }

  /** Show what can be done now: an answer is awaited or not, something was said or not. */
  #showState() {
    const { send, stop, model, beside, start } = this.nodes;
    document.title = `${titleOf(this.conversation)} · chatmill`;
    document.body.classList.toggle("running", this.isRunning);
    send.hidden = model.disabled = beside.disabled = this.isRunning;
    stop.hidden = !this.isRunning;
    const asks = (/** @type {string} */ prompt) => this.ask(prompt);
    start.replaceChildren(...(this.#views.length ? [] : [opening(this.conversation.models, asks)]));
  }

  /** Keep the end in sight, unless the reader has gone back. */
  #follow(always = false) {
    const { scroller } = this.nodes;
    const { scrollHeight, scrollTop, clientHeight } = scroller;
    if (!always && scrollHeight - scrollTop - clientHeight > NEAR) return;
    requestAnimationFrame(() => (scroller.scrollTop = scroller.scrollHeight));
  }
}
