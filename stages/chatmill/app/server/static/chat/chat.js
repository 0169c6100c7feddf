// @ts-check
/**
 * The chat page: which conversation is open, and what its controls do. A button of the page stands in chat.html and
 * acts in `listen` below, one of an answer in answer.js, one of a question in exchange.js.
 */

import { ChatList } from "./chat_list.js";
import { Composer } from "./composer.js";
import { newConversation } from "./conversation.js";
import { openHistory } from "./history.js";
import { Models } from "./models.js";
import { tell, untell } from "./notice.js";
import { closeCovering, startPanels } from "./panels.js";
import { Settings } from "./settings.js";
import { copy } from "./spoken.js";
import { Talk } from "./talk.js";
import { ApiError, onKeyNeeded } from "../shared/api.js";
import { askedKey, showKeys } from "../shared/dialogs.js";
import { button, byId } from "../shared/dom.js";
import { sentence } from "../shared/words.js";

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
let impatient = false; // a message was sent before the models were known
const composer = new Composer(message, { send, back: () => models.all.length > 0 && talk.editLast() });
const history = await openHistory(); // meanwhile people type
const list = new ChatList(byId("chat-list", HTMLElement), history, open);
const talk = new Talk(nodes, { models, settings, history, kept, focus: () => composer.focus() });

/** Open what the address names: a conversation, or a new one with its models. */
async function start() {
  onKeyNeeded(askedKey);
  startPanels();
  listen();
  history.onChange(otherTab);
  await list.show();
  await connect();
}

async function connect() {
  const query = new URLSearchParams(location.search);
  const wanted = [query.get("model"), query.get("beside")].flatMap((id) => id || []);
  try {
    await models.load(wanted);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`No model can be asked. ${sentence(error.message)}`, button("Try again", connect));
    return;
  }
  const missing = wanted.filter((id) => !models.find(id));
  if (missing.length) tell(`There is no model ${missing.join(" and no model ")} here.`);
  else if (history.lasts) untell();
  else tell("This browser keeps no chats for this page: export what you want to keep.");
  await openAddressed();
  if (impatient) send();
}

async function openAddressed() {
  const id = location.hash.slice(1);
  const kept = id ? await history.get(id) : undefined;
  if (kept || id !== talk.conversation.id) show(kept ?? newConversation(addressedModels()));
}

/** The models that the address names and the server has; else its default. */
function addressedModels() {
  const query = new URLSearchParams(location.search);
  const [model, beside] = ["model", "beside"].map((name) => models.find(query.get(name))?.id);
  return [model ?? models.all[0]?.id, beside].filter((id) => id !== undefined);
}

/** Open a kept conversation; without an id, a new one with the same models.
 * @param {string | null} id
 */
async function open(id) {
  talk.stop();
  const kept = id ? await history.get(id) : undefined;
  window.history.pushState(null, "", id ? `#${id}` : location.pathname);
  show(kept ?? newConversation(models.chosen()));
  closeCovering();
  composer.focus();
}

/** @param {Conversation} conversation */
function show(conversation) {
  talk.show(conversation);
  list.show(conversation.id);
}

/** A conversation was kept: the list shows it, and the address names it if it is open.
 * @param {Conversation} conversation
 */
async function kept(conversation) {
  const { id } = talk.conversation;
  if (conversation.id === id && location.hash !== `#${id}`) window.history.pushState(null, "", `#${id}`);
  await list.show(id);
}

/** Another tab has kept or deleted conversations.
 * @param {import("./history.js").Change} change
 */
async function otherTab({ id, deleted }) {
  await list.show();
  const kept = id && (await history.get(id));
  if (id !== talk.conversation.id || !talk.isSettled) return;
  if (deleted) tell("This chat was deleted in another tab. It is kept again if you go on.");
  else if (kept) show(kept);
}

/** Ask what is written in the message. */
function send() {
  const { text } = composer;
  impatient = !models.all.length;
  if (impatient || !text.trim() || !talk.isReady()) return;
  composer.clear();
  talk.ask(text);
}

/** Keep what was changed of a conversation that is kept already. */
function keepChange() {
  if (talk.conversation.revision) talk.keep();
}

function listen() {
  onClick("skip", (event) => (event.preventDefault(), message.focus())); // the address stays as it is
  byId("composer", HTMLFormElement).addEventListener("submit", (event) => (event.preventDefault(), send()));
  onClick("stop", () => (talk.stop(), composer.focus()));
  onClick("new-chat", () => open(null));
  onClick("import", () => chosenFile.click());
  onClick("export", () => list.exportAll());
  onClick("reset", () => settings.reset());
  onClick("keys", () => showKeys());
  onClick("exchanges", copyCode);
  chosenFile.addEventListener("change", importChosen);
  nodes.system.addEventListener("input", () => (talk.conversation.system = nodes.system.value));
  nodes.system.addEventListener("change", keepChange);
  for (const chooser of [model, beside]) {
    chooser.addEventListener("change", () => (talk.hold(models.chosen()), keepChange()));
  }
  addEventListener("popstate", () => (talk.stop(), openAddressed()));
  document.addEventListener("keydown", escaped);
  document.addEventListener("visibilitychange", () => document.hidden && talk.isRunning && talk.keep());
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

/** @param {KeyboardEvent} event */
function escaped(event) {
  if (event.key !== "Escape" || event.defaultPrevented || !talk.isRunning || document.querySelector("dialog")) return;
  event.preventDefault();
  talk.stop();
}

async function importChosen() {
  const file = chosenFile.files?.[0];
  if (file) await list.importFile(file, talk.conversation.models.slice(0, 1));
  chosenFile.value = "";
}

start();
