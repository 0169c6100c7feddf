// @ts-check
/** Exporting chats: the user chooses a format, and the file is downloaded. */

import { copy } from "./announcer.js";
import { toMarkdown } from "./chat_markdown.js";
import { titleOf } from "./conversation.js";
import { showNotice } from "./notice.js";
import { toLines } from "./training_lines.js";
import { askForChoice } from "../shared/dialogs.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {[name: string, label: string, hint: string]} Choice */

/** @type {Choice[]} */
const FILES = [
  ["jsonl", "Training data", "JSON lines of the shown answers, which prepare and the terminal read"],
  ["md", "Markdown", "to be read"],
];
/** @type {Choice} */
const COPY = ["copy", "Copy", "the chat as Markdown"];
/** @type {Choice} */
const TERMINAL = ["terminal", "Continue in the terminal", "downloads the chat, and copies the command for it"];
const WRITERS = { jsonl: toLines, md: toMarkdown };
const PLAIN = /^[\w./~@:-]+$/; // a word that a shell takes as it is

/** Export conversations as the user chooses.
 * @param {Conversation[]} conversations
 */
export async function exportChats(conversations) {
  const ending = conversations.length ? await askForChoice("Export all chats", FILES) : "jsonl";
  if (isWritten(ending)) save(conversations, ending, "chats");
}

/** Export or copy a conversation, or go on with it in the terminal, as the user chooses.
 * @param {Conversation} conversation
 */
export async function exportChat(conversation) {
  const isServed = !document.documentElement.dataset.history; // else the page is a file, whose model has no path
  const choices = [COPY, ...FILES, ...(isServed ? [TERMINAL] : [])];
  const choice = await askForChoice(`Export “${titleOf(conversation)}”`, choices);
  if (isWritten(choice)) save([conversation], choice, "chat");
  else if (choice === "copy") await copy(toMarkdown([conversation]));
  else if (choice === "terminal") await continueInTerminal(conversation);
}

/** The command that continues a downloaded conversation in the terminal.
 * @param {string | undefined} model
 * @param {string} file
 */
export function terminalCommand(model, file) {
  const quoted = model && (PLAIN.test(model) ? model : `'${model.replaceAll("'", "'\\''")}'`);
  return ["chatmill chat", ...(quoted ? [`--model ${quoted}`] : []), `--load ~/Downloads/${file}`].join(" ");
}

/** @param {Conversation} conversation */
async function continueInTerminal(conversation) {
  const file = save([conversation], "jsonl", "chat");
  if (!file) return;
  const command = terminalCommand(conversation.models[0], file);
  await copy(command);
  const text = "The chat is downloaded, and this command is copied, for the folder in which the server was started:";
  showNotice(text, element("code", {}, command));
}

/** @param {string | null} choice @returns {choice is keyof typeof WRITERS} */
function isWritten(choice) {
  return choice !== null && Object.hasOwn(WRITERS, choice);
}

/** Download conversations; returns the file's name, or null if there is nothing to write.
 * @param {Conversation[]} conversations
 * @param {keyof typeof WRITERS} ending
 * @param {string} stem
 */
function save(conversations, ending, stem) {
  const text = WRITERS[ending](conversations);
  if (!text) {
    showNotice("There is nothing to export: no question has been answered yet.");
    return null;
  }
  const name = `${stem}-${timestamp(new Date())}.${ending}`;
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // when the browser has read it
  return name;
}

/** A time as in the names of the files that the terminal saves: 20260131-154500.
 * @param {Date} time
 */
function timestamp(time) {
  const local = new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString();
  return local.slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
}
