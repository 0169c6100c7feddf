// @ts-check
/**
 * The chat page: which conversation is open, and what its controls do. A button of the page is in chat.html and its
 * action in `listen` below; those of an answer are in answer.js, those of a question in exchange.js.
 */

import { ChatList, decoded } from "./chat_list.js";
import { findWords } from "./chat_search.js";
import { Composer } from "./composer.js";
import { newConversation } from "./conversation.js";
import { FileError, readLines } from "./training_lines.js";
import { openHistory } from "./history.js";
import { Models } from "./models.js";
import { hideNotice, showNotice, showProblem } from "./notice.js";
import { closeOverlayPanel, startPanels } from "./panels.js";
import { Settings } from "./settings.js";
import { copy } from "./announcer.js";
import { ChatView } from "./chat_view.js";
import { ApiError, fetchChat, onKeyNeeded } from "../shared/api.js";
import { promptForKey, showKeys } from "../shared/dialogs.js";
import { button, byId } from "../shared/dom.js";
import { sentence } from "../shared/text_format.js";

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
const message = byId("message", HTMLTextAreaElement);
const chosenFile = byId("import-file", HTMLInputElement);
const { model, beside } = nodes;
const models = new Models({ model, beside, about: byId("about-model", HTMLElement) });
const settings = new Settings(byId("sampling", HTMLElement));
const MAX_TEXT = 200_000; // bytes of a dropped file
let sendsWhenReady = false; // a message was sent before the models were loaded
const composer = new Composer(message, { send, back: () => models.all.length > 0 && chatView.editLast() });
const history = await openHistory(); // the user may type meanwhile
const list = new ChatList(byId("chat-list", HTMLElement), history, open);
const chatView = new ChatView(nodes, { models, settings, history, onSaved, focus: () => composer.focus() });

/** Open the conversation that the URL names, or a new one with the models that it names. */
async function start() {
  onKeyNeeded(promptForKey);
  startPanels();
  listen();
  history.onChange(onOtherTabChange);
  await list.show();
  await connect();
  if (document.activeElement === document.body) composer.focus();
}

async function connect() {
  const query = new URLSearchParams(location.search);
  const requested = [query.get("model"), query.get("beside")].flatMap((id) => id || []);
  try {
    await models.load(requested);
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
  if (sendsWhenReady) send();
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

/** Open a saved conversation, where it has the words; without an id, a new one with the same models.
 * @param {string | null} id
 */
async function open(id, words = "") {
  chatView.stop();
  const saved = id ? await history.get(id) : undefined;
  const found = saved && words ? findWords(saved, words) : -1;
  window.history.pushState(null, "", id ? `#${id}` : location.pathname);
  show(saved ?? newConversation(models.chosen()));
  if (found >= 0) chatView.scrollTo(found);
  closeOverlayPanel();
  composer.focus();
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

/** Send the message in the composer. */
function send() {
  const { text } = composer;
  sendsWhenReady = !models.all.length;
  if (sendsWhenReady || !text.trim() || !chatView.isReady()) return;
  composer.clear();
  chatView.ask(text);
}

/** Save a change of a conversation that was saved before. */
function saveChange() {
  if (chatView.conversation.revision) chatView.save();
}

function listen() {
  onClick("skip", (event) => (event.preventDefault(), message.focus())); // the URL stays as it is
  byId("composer", HTMLFormElement).addEventListener("submit", (event) => (event.preventDefault(), send()));
  onClick("stop", () => (chatView.stop(), composer.focus()));
  for (const id of ["new-chat", "new-chat-above"]) onClick(id, () => open(null));
  const search = byId("search", HTMLInputElement);
  search.addEventListener("input", () => list.search(search.value));
  onClick("import", () => chosenFile.click());
  onClick("export", () => list.exportAll());
  onClick("reset", () => settings.reset());
  onClick("keys", () => showKeys());
  onClick("exchanges", copyCode);
  chosenFile.addEventListener("change", importChosen);
  nodes.system.addEventListener("input", () => (chatView.conversation.system = nodes.system.value));
  nodes.system.addEventListener("change", saveChange);
  for (const select of [model, beside]) {
    select.addEventListener("change", () => (chatView.setModels(models.chosen()), saveChange()));
  }
  addEventListener("popstate", () => (chatView.stop(), openFromUrl()));
  document.addEventListener("keydown", onEscape);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", onDrop);
  document.addEventListener("visibilitychange", () => document.hidden && chatView.isRunning && chatView.save());
}

/** @param {string} id @param {(event: Event) => unknown} action */
function onClick(id, action) {
  byId(id, HTMLElement).addEventListener("click", action);
}

/** Copy the code whose button was pressed.
 * @param {Event} event
 */
function copyCode({ target }) {
  if (!(target instanceof HTMLElement) || !target.dataset.copy) return;
  copy(target.closest(".code")?.querySelector("code")?.textContent ?? "");
}

/** Put the texts of dropped files into the message; files of JSON lines are imported.
 * @param {DragEvent} event
 */
async function onDrop(event) {
  const files = [...(event.dataTransfer?.files ?? [])];
  if (files.length) event.preventDefault();
  for (const file of files) await takeDropped(file);
}

/** @param {File} file */
async function takeDropped(file) {
  if (file.name.endsWith(".jsonl")) return importFile(file);
  if (file.size > MAX_TEXT) return showProblem(`${file.name}: over ${MAX_TEXT / 1000} kB: paste a part of it.`);
  try {
    composer.add(decoded(await file.arrayBuffer(), file.name));
  } catch (error) {
    if (!(error instanceof FileError || error instanceof DOMException)) throw error;
    showProblem(error.message);
  }
}

/** @param {File} file */
function importFile(file) {
  return list.importFile(file, chatView.conversation.models.slice(0, 1));
}

/** @param {KeyboardEvent} event */
function onEscape(event) {
  if (event.key !== "Escape" || event.defaultPrevented) return;
  if (!chatView.isRunning || document.querySelector("dialog")) return;
  event.preventDefault();
  chatView.stop();
}

async function importChosen() {
  const file = chosenFile.files?.[0];
  if (file) await importFile(file);
  chosenFile.value = "";
}

start();
