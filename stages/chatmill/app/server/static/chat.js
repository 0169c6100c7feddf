/** The chat page: which conversation is open, and what its controls do. */

import { ApiError, onKeyNeeded } from "./api.js";
import { ChatList } from "./chat_list.js";
import { Composer } from "./composer.js";
import { newConversation } from "./conversation.js";
import { askedKey, showKeys } from "./dialogs.js";
import { button, sentence } from "./dom.js";
import { openHistory } from "./history.js";
import { Models } from "./models.js";
import { tell, untell } from "./notice.js";
import { closeCovering, startPanels } from "./panels.js";
import { Settings } from "./settings.js";
import { copy } from "./spoken.js";
import { Talk } from "./talk.js";

const nodes = Object.fromEntries([...document.querySelectorAll("[id]")].map((node) => [node.id, node]));
const models = new Models({ model: nodes.model, beside: nodes.beside, about: nodes["about-model"] });
const settings = new Settings(nodes.sampling);
let impatient = false; // a message was sent before the models were known
const composer = new Composer(nodes.message, { send, back: () => models.all.length > 0 && talk.editLast() });
const history = await openHistory(); // meanwhile people type
const list = new ChatList(nodes["chat-list"], history, open);
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
  const wanted = [query.get("model"), query.get("beside")].filter(Boolean);
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
  return [model ?? models.all[0]?.id, beside].filter(Boolean);
}

/** Open a kept conversation; without an id, a new one with the same models. */
async function open(id) {
  talk.stop();
  const kept = id ? await history.get(id) : undefined;
  window.history.pushState(null, "", id ? `#${id}` : location.pathname);
  show(kept ?? newConversation(models.chosen()));
  closeCovering();
  composer.focus();
}

function show(conversation) {
  talk.show(conversation);
  list.show(conversation.id);
}

/** A conversation was kept: the list shows it, and the address names it if it is open. */
async function kept(conversation) {
  const { id } = talk.conversation;
  if (conversation.id === id && location.hash !== `#${id}`) window.history.pushState(null, "", `#${id}`);
  await list.show(id);
}

/** Another tab has kept or deleted conversations. */
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
  nodes.skip.addEventListener("click", (event) => (event.preventDefault(), nodes.message.focus())); // address as it is
  nodes.composer.addEventListener("submit", (event) => (event.preventDefault(), send()));
  nodes.stop.addEventListener("click", () => (talk.stop(), composer.focus()));
  nodes["new-chat"].addEventListener("click", () => open(null));
  nodes.import.addEventListener("click", () => nodes["import-file"].click());
  nodes["import-file"].addEventListener("change", importChosen);
  nodes.export.addEventListener("click", () => list.exportAll());
  nodes.reset.addEventListener("click", () => settings.reset());
  nodes.keys.addEventListener("click", () => showKeys());
  nodes.system.addEventListener("input", () => (talk.conversation.system = nodes.system.value));
  nodes.system.addEventListener("change", keepChange);
  for (const chooser of [nodes.model, nodes.beside]) {
    chooser.addEventListener("change", () => (talk.hold(models.chosen()), keepChange()));
  }
  nodes.exchanges.addEventListener("click", ({ target }) => {
    if (target.dataset.copy) copy(target.closest(".code").querySelector("code").textContent);
  });
  addEventListener("popstate", () => (talk.stop(), openAddressed()));
  document.addEventListener("keydown", escaped);
  document.addEventListener("visibilitychange", () => document.hidden && talk.isRunning && talk.keep());
}

function escaped(event) {
  if (event.key !== "Escape" || event.defaultPrevented || !talk.isRunning || document.querySelector("dialog")) return;
  event.preventDefault();
  talk.stop();
}

async function importChosen() {
  const [file] = nodes["import-file"].files;
  if (file) await list.importFile(file, talk.conversation.models.slice(0, 1));
  nodes["import-file"].value = "";
}

start();
