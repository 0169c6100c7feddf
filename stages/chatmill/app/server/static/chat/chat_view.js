// @ts-check
/** The open conversation: its messages and answers on the page, and saving it. */

import { hasText, messagesFor, newAnswer, newConversation, textOf, titleOf } from "./conversation.js";
import { ExchangeView, streamInto } from "./exchange.js";
import { nameOf } from "./models.js";
import { announce, clearAnnouncements, copy, showNotice, showProblem } from "./notice.js";
import { button, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Exchange} Exchange */
/** @typedef {{ exchanges: HTMLElement, scroller: HTMLElement, start: HTMLElement, send: HTMLElement, stop: HTMLElement,
 *   system: HTMLTextAreaElement, model: HTMLSelectElement, beside: HTMLSelectElement }} Nodes */
/** @typedef {{ models: import("./models.js").Models, settings: import("./settings.js").Settings,
 *   history: import("./history.js").History, onSaved: (conversation: Conversation) => Promise<void>,
 *   focus: () => void }} Parts `onSaved` is called after a conversation was saved, `focus` to focus the composer */

const NEAR = 60; // pixels from the end within which the page scrolls with a growing answer

/** The view of a conversation with one model, or with two side by side. */
export class ChatView {
  conversation = newConversation([]);
  /** @type {ExchangeView[]} */
  #views = [];
  /** @type {Map<Answer, AbortController>} */
  #running = new Map(); // the running answers, and what stops them
  #saving = 0; // the number of unfinished savings

  /** @param {Nodes} nodes @param {Parts} parts */
  constructor(nodes, { models, settings, history, onSaved, focus }) {
    this.nodes = nodes;
    this.models = models;
    this.settings = settings;
    this.history = history;
    this.onSaved = onSaved;
    this.focus = focus;
  }

  get isRunning() {
    return this.#running.size > 0;
  }

  /** Whether no answer is running and everything is saved, so that another tab's version may be shown. */
  get isSettled() {
    return !this.isRunning && !this.#saving;
  }

  /** Open a conversation with its models, as far as the server has them.
   * @param {Conversation} conversation
   */
  show(conversation) {
    const { all } = this.models;
    const present = conversation.models.filter((id) => this.models.find(id));
    if (all.length && present.length < conversation.models.length) {
      const names = conversation.models.join(" and ");
      showNotice(`This chat used ${names}, which this server does not have now: another model continues it.`);
    }
    this.conversation = conversation;
    this.nodes.system.value = conversation.system;
    this.setModels(present.length ? present : all.slice(0, 1).map(({ id }) => id));
  }

  /** Continue with these models. An added one takes over the answers of the first.
   * @param {string[]} models
   */
  setModels(models) {
    const { exchanges } = this.conversation;
    this.conversation.models = models;
    for (const { answers } of exchanges) {
      for (const column of models.keys()) answers[column] ??= structuredClone(answers[0]);
    }
    this.#views = exchanges.map((exchange) => this.#view(exchange));
    this.nodes.exchanges.replaceChildren(...this.#views.map(({ node }) => node));
    this.showModels();
    this.#showState();
    this.nodes.scroller.scrollTop = this.nodes.scroller.scrollHeight;
  }

  /** Show the models of the conversation, and the defaults of the first. */
  showModels() {
    this.models.choose(this.conversation.models);
    this.settings.setDefaults(this.models.find(this.conversation.models[0])?.defaults);
  }

  /** Whether an answer can be requested (not before a conversation is open); invalid settings are shown in a notice. */
  isReady() {
    if (this.isRunning || !this.conversation.models.length) return false;
    const invalid = this.settings.invalid();
    if (invalid.length) showProblem(`Settings with values out of range: ${invalid.join(", ")}.`);
    return !invalid.length;
  }

  /** Send a message to every model of the conversation.
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
    await this.save(); // so that the question is not lost if the page is closed
    await Promise.all(answers);
  }

  /** Let the user edit the last message; false if there is none or an answer is running. */
  editLast() {
    const last = this.#views.at(-1);
    if (!last || this.isRunning) return false;
    last.edit();
    return true;
  }

  stop() {
    for (const controller of this.#running.values()) controller.abort();
  }

  /** Save a conversation in this browser; a failure is shown in a notice. */
  async save(conversation = this.conversation) {
    if (this.history.removed.has(conversation.id)) return;
    const { id } = conversation;
    conversation.updated = Date.now();
    this.#saving += 1;
    try {
      await this.history.put(conversation);
    } catch (error) {
      const reason = error instanceof Error ? error.message : error;
      showProblem(`This chat could not be saved: ${reason}. Export it, or delete others.`);
      return;
    } finally {
      this.#saving -= 1;
    }
    if (conversation.id !== id) {
      showNotice("This chat was changed in another tab: this version is saved as a chat of its own.");
    }
    await this.onSaved(conversation);
  }

  /** Request an answer of a model, or the rest of it, and save it.
   * @param {ExchangeView} view
   * @param {number} column
   */
  async #answer(view, column, continues = false) {
    const conversation = this.conversation;
    const answer = view.exchange.answers[column];
    const shown = view.answers[column];
    const request = this.#request(view.exchange, column, continues);
    const controller = new AbortController();
    if (!this.isRunning) clearAnnouncements();
    this.#running.set(answer, controller);
    this.#showState();
    shown.begin(this.models.find(answer.model)?.loaded ? "waiting …" : `loading ${answer.model} …`);
    try {
      await streamInto(answer, request, controller.signal, () => (shown.changed(), this.#follow()));
    } finally {
      this.#running.delete(answer);
      shown.finish();
    }
    this.#follow();
    this.#showState();
    announce(`${answer.model}: ${answer.problem ?? textOf(answer.parts)}`);
    await this.save(conversation);
    if (!answer.problem) await this.#refreshModel(answer.model);
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

  /** Fetch the description of a model that has just been loaded.
   * @param {string | null} id
   */
  async #refreshModel(id) {
    if (this.models.find(id)?.loaded) return;
    await this.models.load();
    this.showModels();
  }

  /** Ask a new message in place of an exchange and all that came after it.
   * @param {ExchangeView} view
   * @param {string} text
   */
  #edit(view, text) {
    if (!this.isReady()) return;
    const index = this.#views.indexOf(view);
    this.conversation.exchanges.splice(index);
    for (const { node } of this.#views.splice(index)) node.remove();
    this.focus();
    this.ask(text);
  }

  /** Request another answer of a model; the old answer remains if that fails.
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
    const after = answers[column];
    if (after.problem && !hasText(after) && hasText(before)) {
      answers[column] = before;
      before.problem = after.problem;
    } else if (this.settings.isGreedy && hasText(after) && textOf(after.parts) === textOf(before.parts)) {
      showNotice("At temperature 0 the same message has the same answer: raise it in the settings for another one.");
    }
    view.showAnswer(column);
    await this.save();
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

  /** Show which controls can be used now: an answer is running or not, there are messages or not. */
  #showState() {
    const { send, stop, model, beside, start } = this.nodes;
    document.title = `${titleOf(this.conversation)} · chatmill`;
    document.body.classList.toggle("running", this.isRunning);
    send.hidden = model.disabled = beside.disabled = this.isRunning;
    stop.hidden = !this.isRunning;
    const names = this.conversation.models.map(nameOf).join(" and ");
    const heading = element("h2", {}, names ? `Chat with ${names}` : "Chat");
    const known = this.conversation.models.flatMap((id) => this.models.find(id) ?? []);
    const facts = known.map(({ about }) => element("p", {}, about ?? ""));
    const prompts = (known[0]?.prompts ?? []).map((text) => button(text, () => (this.focus(), this.ask(text))));
    const hint = `A small model knows only what it was trained on.${prompts.length ? " Try one of these:" : ""}`;
    const offer = element("div", { className: "prompts" }, ...prompts);
    start.replaceChildren(heading, ...facts, element("p", {}, hint), offer);
    start.hidden = this.#views.length > 0;
  }

  /** Scroll to the end, unless the user has scrolled back. */
  #follow(always = false) {
    const { scroller } = this.nodes;
    const { scrollHeight, scrollTop, clientHeight } = scroller;
    if (!always && scrollHeight - scrollTop - clientHeight > NEAR) return;
    requestAnimationFrame(() => (scroller.scrollTop = scroller.scrollHeight));
  }
}
