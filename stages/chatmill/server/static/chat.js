/** The chat: one conversation with one model, or with two side by side. */

import { ApiError, onKeyNeeded } from "./api.js";
import { streamInto } from "./answer.js";
import { ChatList } from "./chat_list.js";
import { isSaid, messagesFor, newAnswer, newConversation, textOf, titleOf } from "./conversation.js";
import { copyText } from "./copying.js";
import { askedKey, showKeys } from "./dialogs.js";
import { button } from "./dom.js";
import { ExchangeView } from "./exchange.js";
import { openHistory } from "./history.js";
import { Models } from "./models.js";
import { tell, untell } from "./notice.js";
import { opening } from "./opening.js";
import { closeCovering, startPanels } from "./panels.js";
import { Settings } from "./settings.js";

const NEAR = 60; // pixels from the end at which the page goes on following what comes

const at = Object.fromEntries([...document.querySelectorAll("[id]")].map((node) => [node.id, node]));
const models = new Models({ model: at.model, beside: at.beside, about: at["about-model"] });
const settings = new Settings(at.sampling);
const running = new Map(); // answers that are on their way, and what stops them
let history;
let list;
let conversation = newConversation([]);
let views = [];

/** Open what the address names: a conversation, or a new one with its models. */
async function start() {
  onKeyNeeded(askedKey);
  startPanels();
  listen();
  history = await openHistory();
  list = new ChatList(at["chat-list"], history, open);
  history.onChange(otherTab);
  await list.show();
  await connect();
}

async function connect() {
  const query = new URLSearchParams(location.search);
  const wanted = [query.get("model"), query.get("beside")].filter(Boolean);
  try {
    await models.load(wanted);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`No models: ${error.message}.`, button("Try again", connect));
    return;
  }
  const missing = wanted.filter((id) => !models.find(id));
  if (missing.length) tell(`There is no model ${missing.join(" and no model ")} here.`);
  else if (history.lasts) untell();
  else tell("This browser keeps no chats for this page: export what you want to keep.");
  await openAddressed();
}

async function openAddressed() {
  const id = location.hash.slice(1);
  const kept = id ? await history.get(id) : undefined;
  if (kept || id !== conversation.id) show(kept ?? newConversation(wantedModels()));
}

/** The models that the address names and the server has; else its default. */
function wantedModels() {
  const query = new URLSearchParams(location.search);
  const [model, beside] = ["model", "beside"].map((name) => models.find(query.get(name))?.id);
  const first = model ?? models.all[0].id;
  return beside ? [first, beside] : [first];
}

/** Open a kept conversation; without an id, a new one with the same models. */
async function open(id) {
  stop();
  const kept = id ? await history.get(id) : undefined;
  address(id ? `#${id}` : location.pathname);
  show(kept ?? newConversation(models.chosen()));
  closeCovering();
  at.message.focus();
}

function address(url) {
  window.history.pushState(null, "", url);
}

function show(shown) {
  conversation = shown;
  const present = conversation.models.filter((id) => models.find(id));
  if (present.length < conversation.models.length) {
    tell(`This chat was held with ${conversation.models.join(" and ")}, which is not here now: another model goes on.`);
  }
  conversation.models = present.length ? present : [models.all[0].id];
  at.system.value = conversation.system;
  showModels();
  list.show(conversation.id);
}

/** Show the conversation with the models that it is held with now. */
function showModels() {
  models.choose(conversation.models);
  settings.setDefaults(models.find(conversation.models[0]).defaults);
  for (const { answers } of conversation.exchanges) {
    conversation.models.forEach((_, column) => (answers[column] ??= structuredClone(answers[0])));
  }
  views = conversation.exchanges.map(view);
  at.exchanges.replaceChildren(...views.map(({ node }) => node));
  showState();
  at.scroller.scrollTop = at.scroller.scrollHeight;
}

function view(exchange) {
  return new ExchangeView(exchange, conversation.models.length, { edit, regenerate, goOn, copy: copyAnswer });
}

/** Show what can be done now: an answer is awaited or not, something was said or not. */
function showState() {
  const isRunning = running.size > 0;
  document.title = `${titleOf(conversation)} · chatmill`;
  document.body.classList.toggle("running", isRunning);
  at.send.hidden = isRunning;
  at.stop.hidden = !isRunning;
  at.model.disabled = at.beside.disabled = isRunning;
  at.start.replaceChildren(...(views.length ? [] : [opening(conversation.models, ask)]));
}

/** Ask every model of the conversation. */
async function ask(text) {
  if (!isReady()) return;
  const exchange = { asked: text.toWellFormed(), answers: conversation.models.map(newAnswer) };
  conversation.exchanges.push(exchange);
  views.push(view(exchange));
  at.exchanges.append(views.at(-1).node);
  follow(true);
  await answerAll(views.at(-1));
}

/** Ask what is written in the message. */
function send() {
  const text = at.message.value;
  if (!text.trim() || !isReady()) return;
  at.message.value = "";
  fit(at.message);
  ask(text);
}

/** Whether an answer can be asked for; where a setting is in the way, the reader is told. */
function isReady() {
  if (running.size || !models.all.length) return false;
  const mistakes = settings.mistakes();
  if (mistakes.length) tell(`Settings that may not have their value: ${mistakes.join(", ")}.`);
  return !mistakes.length;
}

async function answerAll(view) {
  const answers = conversation.models.map((_, column) => answer(view, column));
  await keep(); // the question outlives the page, whatever becomes of the answer
  await Promise.all(answers);
}

/** Have a model answer, or go on with what it has said; keep what came of it. */
async function answer(exchangeView, column, continues = false) {
  const held = conversation;
  const { exchange } = exchangeView;
  const given = exchange.answers[column];
  const continued = continues ? structuredClone(given.parts) : [];
  const shown = exchangeView.answers[column];
  const request = {
    ...settings.values(),
    model: given.model,
    messages: messagesFor(held, column, held.exchanges.indexOf(exchange), continued),
    truncation: "auto",
    ...(continues ? { continue_final_message: true } : {}),
  };
  const controller = new AbortController();
  running.set(given, controller);
  showState();
  shown.begin(models.find(given.model)?.loaded ? "waiting …" : `loading ${given.model} …`);
  try {
    await streamInto(given, request, controller.signal, () => (shown.changed(), follow()));
  } finally {
    running.delete(given);
    shown.finish();
  }
  follow();
  showState();
  at.announcer.textContent = `${given.model}: ${given.problem ?? textOf(given.parts)}`;
  await keep(held);
  if (!given.problem) await learnModels(given.model);
}

/** Ask for what is known of a model once it is loaded. */
async function learnModels(id) {
  if (models.find(id)?.loaded) return;
  await models.load();
  models.choose(conversation.models);
  settings.setDefaults(models.find(conversation.models[0]).defaults);
}

/** Ask something else in place of an exchange, and of all that came after it. */
function edit(exchangeView, text) {
  if (!isReady()) return;
  const index = views.indexOf(exchangeView);
  conversation.exchanges.length = index;
  for (const { node } of views.splice(index)) node.remove();
  at.message.focus();
  ask(text);
}

async function regenerate(exchangeView, column) {
  if (!isReady()) return;
  exchangeView.exchange.answers[column] = newAnswer(conversation.models[column]);
  exchangeView.showAnswer(column);
  at.message.focus();
  await answer(exchangeView, column);
}

async function goOn(exchangeView, column) {
  if (!isReady()) return;
  at.message.focus();
  exchangeView.exchange.answers[column].model = conversation.models[column];
  exchangeView.showAnswer(column);
  await answer(exchangeView, column, isSaid(exchangeView.exchange.answers[column]));
}

function stop() {
  for (const controller of running.values()) controller.abort();
}

/** Keep a conversation in this browser; say so where it cannot be. */
async function keep(held = conversation) {
  held.updated = Date.now();
  const { id } = held;
  try {
    await history.put(held);
  } catch (error) {
    tell(`This chat is not kept: ${error.message}. Export it, or delete others.`);
    return;
  }
  if (held !== conversation) return;
  if (held.id !== id) tell("This chat was changed in another tab: this one goes on as a chat of its own.");
  if (location.hash !== `#${held.id}`) address(`#${held.id}`);
  await list.show(held.id);
}

/** Another tab has kept or deleted conversations. */
async function otherTab({ id, deleted }) {
  await list.show();
  if (id !== conversation.id || running.size) return;
  if (deleted) tell("This chat was deleted in another tab. It is kept again if you go on.");
  else show(await history.get(id));
}

async function copyAnswer(answer) {
  await copy(textOf(answer.parts));
}

async function copy(text) {
  at.announcer.textContent = (await copyText(text)) ? "Copied." : "The browser does not let this page copy.";
}

/** Keep the end in sight, unless the reader has gone back. */
function follow(always = false) {
  const { scrollHeight, scrollTop, clientHeight } = at.scroller;
  if (!always && scrollHeight - scrollTop - clientHeight > NEAR) return;
  requestAnimationFrame(() => (at.scroller.scrollTop = at.scroller.scrollHeight));
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function changeModels() {
  conversation.models = models.chosen();
  showModels();
  if (conversation.revision) keep();
}

function listen() {
  at.composer.addEventListener("submit", (event) => (event.preventDefault(), send()));
  at.message.addEventListener("input", () => fit(at.message));
  at.message.addEventListener("keydown", typed);
  at.stop.addEventListener("click", () => (stop(), at.message.focus()));
  at["new-chat"].addEventListener("click", () => open(null));
  at.import.addEventListener("click", () => at["import-file"].click());
  at["import-file"].addEventListener("change", importChosen);
  at.export.addEventListener("click", () => list.exportAll());
  at.reset.addEventListener("click", () => settings.reset());
  at.keys.addEventListener("click", () => showKeys());
  at.system.addEventListener("input", () => (conversation.system = at.system.value));
  for (const chooser of [at.model, at.beside]) chooser.addEventListener("change", changeModels);
  addEventListener("popstate", () => (stop(), openAddressed()));
  document.addEventListener("keydown", escaped);
  document.addEventListener("visibilitychange", () => document.hidden && running.size && keep());
  at.exchanges.addEventListener("click", ({ target }) => {
    if (target.dataset.copy) copy(target.closest(".code").querySelector("code").textContent);
  });
}

function typed(event) {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !at.message.value && views.length && !running.size) {
    event.preventDefault();
    views.at(-1).edit();
  }
}

function escaped(event) {
  if (event.key !== "Escape" || event.defaultPrevented || !running.size || document.querySelector("dialog")) return;
  event.preventDefault();
  stop();
}

async function importChosen() {
  const [file] = at["import-file"].files;
  if (file) await list.importFile(file, [conversation.models[0]]);
  at["import-file"].value = "";
}

start();
