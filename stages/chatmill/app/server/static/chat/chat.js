// @ts-check
/**
 * The chat page: which conversation is open, and what its controls do. A button of the page is in chat.html and its
 * action in `listen` below; those of a question and its answers are in exchange.js.
 */

import { ChatList } from "./chat_list.js";
import { ChatView } from "./chat_view.js";
import { FileError, newConversation, readLines } from "./conversation.js";
import { History } from "./history.js";
import { Models } from "./models.js";
import { copy, hideNotice, showNotice, showProblem } from "./notice.js";
import { closeOverlayPanel, startPanels } from "./panels.js";
import { Settings } from "./settings.js";
import { ApiError, fetchChat } from "../shared/api.js";
import { button, byId, sentence } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const nodes = {
  exchanges: byId("exchanges", HTMLElement),
  scroller: byId("scroller", HTMLElement),
  start: byId("start", HTMLElement),
  send: byId("send", HTMLElement),
  stop: byId("stop", HTMLElement),
  system: byId("system", HTMLTextAreaElement),
  model: byId("model", HTMLSelectElement),
  beside: byId("beside", HTMLSelectElement),
};
const { model, beside } = nodes;
const message = byId("message", HTMLTextAreaElement);
const chosenFile = byId("import-file", HTMLInputElement);
const models = new Models({ model, beside, about: byId("about-model", HTMLElement) });
const settings = new Settings(byId("sampling", HTMLElement));
const history = new History();
const list = new ChatList(byId("chat-list", HTMLElement), history, open);
const chatView = new ChatView(nodes, { models, settings, history, onSaved, focus });

/** Open the conversation that the URL names, or a new one with the models that it names. */
async function start() {
  startPanels();
  listen();
  await history.open(); // the user may type meanwhile
  history.onChange(onOtherTabChange);
  await list.show();
  await connect();
  if (document.activeElement === document.body) focus();
}

async function connect() {
  const query = new URLSearchParams(location.search);
  const requested = [query.get("model"), query.get("beside")].flatMap((id) => id || []);
  const waiting = setTimeout(showNotice, 500, "The model is loading.");
  try {
    await models.load(requested).finally(() => clearTimeout(waiting));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showProblem(`The models cannot be listed. ${sentence(error.message)}`, button("Try again", connect));
    await openFromUrl(); // saved chats can be read
    return;
  }
  const missing = requested.filter((id) => !models.find(id));
  if (missing.length) showProblem(`There is no model ${missing.join(" and no model ")} here.`);
  else if (history.lasts) hideNotice();
  else showNotice("This browser cannot save chats for this page: export those that you want to keep.");
  await takeLoaded();
  await openFromUrl();
}

/** Save the server's loaded chat if the URL names it, unless this browser has it, and name it as any saved chat. */
async function takeLoaded() {
  const id = new URLSearchParams(location.search).get("load");
  if (!id || location.hash) return;
  try {
    if (!(await history.get(id))) {
      const [chat] = readLines(await fetchChat(id), "--load", modelsInUrl());
      await history.restore({ ...chat, id });
      await list.show();
    }
    window.history.replaceState(null, "", `#${id}`);
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof FileError || error instanceof DOMException)) throw error;
    showProblem(`The chat cannot be loaded. ${sentence(error.message)}`);
  }
}

async function openFromUrl() {
  const id = location.hash.slice(1);
  const saved = id ? await history.get(id) : undefined;
  if (saved || id !== chatView.conversation.id) show(saved ?? newConversation(modelsInUrl()));
}

/** The models that the URL names and the server has, or the server's default. */
function modelsInUrl() {
  const query = new URLSearchParams(location.search);
  const [model, beside] = ["model", "beside"].map((name) => models.find(query.get(name))?.id);
  return [model ?? models.all[0]?.id, beside].filter((id) => id !== undefined);
}

/** Open a saved conversation; without an id, a new one with the same models.
 * @param {string | null} id
 */
async function open(id) {
  chatView.stop();
  const saved = id ? await history.get(id) : undefined;
  window.history.pushState(null, "", id ? `#${id}` : location.pathname);
  show(saved ?? newConversation(models.chosen()));
  closeOverlayPanel();
  focus();
}

/** @param {Conversation} conversation */
function show(conversation) {
  chatView.show(conversation);
  list.show(conversation.id);
}

/** Show a conversation that was saved in the list, and its id in the URL if it is open.
 * @param {Conversation} conversation
 */
async function onSaved(conversation) {
  const { id } = chatView.conversation;
  if (conversation.id === id && location.hash !== `#${id}`) window.history.pushState(null, "", `#${id}`);
  await list.show(id);
}

/** Show what another tab has saved or deleted.
 * @param {import("./history.js").Change} change
 */
async function onOtherTabChange({ id, deleted }) {
  await list.show();
  const saved = id && (await history.get(id));
  if (id !== chatView.conversation.id || !chatView.isSettled) return;
  if (deleted) showNotice("This chat was deleted in another tab. It is saved again if you continue.");
  else if (saved) show(saved);
}

/** Send the message in the field. */
function send() {
  const text = message.value;
  if (!text.trim() || !chatView.isReady()) return;
  message.value = "";
  fitMessage();
  chatView.ask(text);
}

/** Let the field of the message grow with its text. */
function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`; // with its border
}

/** Focus the message, unless that opens an on-screen keyboard, which covers half of the page. */
function focus() {
  if (matchMedia("(pointer: fine)").matches) message.focus();
}

/** Save a change of a conversation that was saved before. */
function saveChange() {
  if (chatView.conversation.revision) chatView.save();
}

function listen() {
  onClick("skip", (event) => (event.preventDefault(), message.focus())); // the URL stays as it is
  byId("composer", HTMLFormElement).addEventListener("submit", (event) => (event.preventDefault(), send()));
  message.addEventListener("input", fitMessage);
  message.addEventListener("keydown", onMessageKey);
  onClick("stop", () => (chatView.stop(), focus()));
  onClick("new-chat", () => open(null));
  onClick("import", () => chosenFile.click());
  onClick("export", () => list.exportAll());
  onClick("reset", () => settings.reset());
  onClick("exchanges", copyCode);
  chosenFile.addEventListener("change", importChosen);
  nodes.system.addEventListener("input", () => (chatView.conversation.system = nodes.system.value));
  nodes.system.addEventListener("change", saveChange);
  for (const select of [model, beside]) {
    select.addEventListener("change", () => (chatView.setModels(models.chosen()), saveChange()));
  }
  addEventListener("popstate", () => (chatView.stop(), openFromUrl()));
  document.addEventListener("keydown", onEscape);
  document.addEventListener("visibilitychange", () => document.hidden && chatView.isRunning && chatView.save());
}

/** @param {string} id @param {(event: Event) => unknown} action */
function onClick(id, action) {
  byId(id, HTMLElement).addEventListener("click", action);
}

/** Enter sends the message, and ↑ in an empty field edits the last one.
 * @param {KeyboardEvent} event
 */
function onMessageKey(event) {
  if (event.isComposing) return; // Enter may end a word in another script
  if (event.key === "Enter" && !event.shiftKey) send();
  else if (event.key !== "ArrowUp" || message.value || !chatView.editLast()) return;
  event.preventDefault();
}

/** Escape closes the panel that covers the chat, or stops the answer.
 * @param {KeyboardEvent} event
 */
function onEscape(event) {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog")) return;
  if (closeOverlayPanel()) event.preventDefault();
  else chatView.stop();
}

/** Copy the code whose button was pressed.
 * @param {Event} event
 */
function copyCode({ target }) {
  if (!(target instanceof HTMLElement) || !target.dataset.copy) return;
  copy(target.closest(".code")?.querySelector("code")?.textContent ?? "");
}

async function importChosen() {
  const file = chosenFile.files?.[0];
  if (file) await list.importFile(file, chatView.conversation.models.slice(0, 1));
  chosenFile.value = "";
}

start();
