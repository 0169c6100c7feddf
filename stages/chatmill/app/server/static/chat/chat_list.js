// @ts-check
/** The list of the saved conversations, and their import and export. */

import { FileError, readLines, toLines } from "./conversation.js";
import { latestFirst } from "./history.js";
import { showNotice } from "./notice.js";
import { askConfirmation } from "../shared/dialogs.js";
import { button, byId, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const PAGE = 100; // conversations that are listed at once
const MAX_BYTES = 100_000_000; // of a file to import

/** The list inside a node; `open` is called with the id of the chosen conversation, or null if that was deleted. */
export class ChatList {
  #shown = PAGE;

  /** @type {string | null} */
  #current = null;

  /**
   * @param {HTMLElement} node
   * @param {import("./history.js").History} history
   * @param {(id: string | null) => unknown} open
   */
  constructor(node, history, open) {
    this.node = node;
    this.history = history;
    this.open = open;
  }

  /** Show the saved conversations; `current` is the id of the open one. */
  async show(current = this.#current) {
    this.#current = current;
    const titles = await this.history.titles();
    const rows = titles.slice(0, this.#shown).map((one) => this.#row(one));
    const more = titles.length - rows.length;
    const label = `Show ${Math.min(more, PAGE)} of ${more} more`;
    if (more > 0) rows.push(element("li", {}, button(label, () => this.#more())));
    this.node.replaceChildren(...(rows.length ? rows : [element("li", { className: "hint" }, "No chats yet.")]));
  }

  /** Export all conversations as one file. */
  async exportAll() {
    const all = await this.history.all();
    this.#export(all.sort(latestFirst), "chats.jsonl");
  }

  /** Import the conversations of a file: all of them, or none if the file has an error.
   * @param {File} file
   * @param {string[]} models
   */
  async importFile(file, models) {
    try {
      if (file.size > MAX_BYTES) throw new FileError(`${file.name}: over ${MAX_BYTES / 1e6} MB: split the file`);
      const bytes = await file.arrayBuffer();
      const conversations = readLines(decoded(bytes, file.name), file.name, models);
      const now = Date.now();
      conversations.forEach((one, index) => (one.updated = now - index)); // listed in the order of the file
      await this.history.putAll(conversations);
      await this.show();
      showNotice(`${file.name}: ${conversations.length} imported.`);
      this.open(conversations[0].id);
    } catch (error) {
      if (!(error instanceof FileError || error instanceof DOMException)) throw error;
      showNotice(`Nothing was imported. ${error.message}`);
    }
  }

  /** @param {import("./history.js").Title} title */
  #row({ id, title }) {
    const isOpen = id === this.#current;
    const name = button(title, () => this.open(id), { className: "title", ariaCurrent: isOpen ? "page" : null });
    const save = button("↓", () => this.#exportOne(id), { className: "quiet", title: "Export" });
    const remove = button("×", () => this.#remove(id, title), { className: "quiet", title: "Delete" });
    save.ariaLabel = `Export ${title}`;
    remove.ariaLabel = `Delete ${title}`;
    return element("li", { className: isOpen ? "chat open" : "chat" }, name, save, remove);
  }

  #more() {
    this.#shown += PAGE;
    return this.show();
  }

  /** @param {string} id */
  async #exportOne(id) {
    const conversation = await this.history.get(id);
    if (conversation) this.#export([conversation], "chat.jsonl");
  }

  /** @param {Conversation[]} conversations @param {string} name */
  #export(conversations, name) {
    const lines = toLines(conversations);
    if (lines) download(lines, name);
    else showNotice("There is nothing to export: no question has been answered yet.");
  }

  /** @param {string} id @param {string} title */
  async #remove(id, title) {
    if (!(await askConfirmation("Delete this chat?", `“${title}” cannot be restored.`, "Delete"))) return;
    await this.history.remove(id);
    await this.show();
    if (id === this.#current) this.open(null);
    (this.node.querySelector("button") ?? byId("new-chat", HTMLButtonElement)).focus();
  }
}

/** @param {ArrayBuffer} bytes @param {string} name */
function decoded(bytes, name) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new FileError(`${name}: the file is not UTF-8: save it as UTF-8`);
  }
}

/** @param {string} text @param {string} name */
function download(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // when the browser has read it
}
