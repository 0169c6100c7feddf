// @ts-check
/** The list of the saved conversations, and their import and export. */

import { hasWords, periodOf } from "./chat_search.js";
import { exportChat, exportChats } from "./chat_export.js";
import { latestFirst } from "./history.js";
import { hideNotice, showNotice, showProblem } from "./notice.js";
import { FileError, readLines } from "./training_lines.js";
import { askForText } from "../shared/dialogs.js";
import { button, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const PAGE = 100; // conversations that are listed at once
const MAX_BYTES = 10_000_000; // of a file to import

/** The list inside a node; `open` is called with the id of the chosen conversation, or null if that was deleted, and
 * with the words that were searched for. */
export class ChatList {
  #shown = PAGE;
  #words = ""; // that the listed conversations contain

  /** @type {string | null} */
  #current = null;

  /**
   * @param {HTMLElement} node
   * @param {import("./history.js").History} history
   * @param {(id: string | null, words?: string) => unknown} open
   */
  constructor(node, history, open) {
    this.node = node;
    this.history = history;
    this.open = open;
  }

  /** Show the saved conversations; `current` is the id of the open one. */
  async show(current = this.#current) {
    this.#current = current;
    const titles = await this.#found();
    const listed = titles.slice(0, this.#shown);
    const rows = this.#rows(listed);
    const more = titles.length - listed.length;
    const label = `Show ${Math.min(more, PAGE)} of ${more} more`;
    if (more > 0) rows.push(element("li", {}, button(label, () => this.#more())));
    const none = this.#words ? "No chat has these words." : "No chats yet.";
    this.node.replaceChildren(...(rows.length ? rows : [element("li", { className: "hint" }, none)]));
  }

  /** List the conversations that contain each of these words, or all of them.
   * @param {string} words
   */
  search(words) {
    this.#words = words.trim();
    this.#shown = PAGE;
    return this.show();
  }

  async #found() {
    const titles = await this.history.titles();
    if (!this.#words) return titles;
    const all = await this.history.all();
    const ids = new Set(all.filter((one) => hasWords(one, this.#words)).map(({ id }) => id));
    return titles.filter(({ id }) => ids.has(id));
  }

  /** The rows of titles, under the periods in which they were changed.
   * @param {import("./history.js").Title[]} titles
   */
  #rows(titles) {
    const now = Date.now();
    const periods = titles.map(({ updated }) => periodOf(updated, now));
    return titles.flatMap((title, index) => {
      const row = this.#row(title);
      const begins = periods[index] !== periods[index - 1];
      return begins ? [element("li", { className: "period" }, periods[index]), row] : [row];
    });
  }

  /** Export all conversations as one file. */
  async exportAll() {
    const all = await this.history.all();
    await exportChats(all.sort(latestFirst));
  }

  /** Import the conversations of a file of JSON lines: all of them, or none if the file has an error.
   * @param {File} file
   * @param {string[]} models that continue them
   */
  async importFile(file, models) {
    try {
      if (file.size > MAX_BYTES) throw new FileError(`${file.name}: over ${MAX_BYTES / 1e6} MB: split the file`);
      const read = readLines(decoded(await file.arrayBuffer(), file.name), file.name, models);
      for (const [index, one] of read.entries()) {
        await this.history.restore({ ...one, updated: file.lastModified - index }); // listed in the order of the file
      }
      await this.show();
      showNotice(`${file.name}: ${read.length} imported.`);
      this.open(read[0].id);
    } catch (error) {
      if (!(error instanceof FileError || error instanceof DOMException)) throw error;
      showProblem(`Nothing was imported. ${error.message}`);
    }
  }

  /** @param {import("./history.js").Title} title */
  #row({ id, title }) {
    const isOpen = id === this.#current;
    const opens = () => this.open(id, this.#words);
    const name = button(title, opens, { className: "title", ariaCurrent: isOpen ? "page" : null });
    const actions = /** @type {[string, string, () => unknown][]} */ ([
      ["✎", "Rename", () => this.#rename(id, title)],
      ["↓", "Export", () => this.#exportOne(id)],
      ["×", "Delete", () => this.#remove(id, title)],
    ]);
    const buttons = actions.map(([sign, does, action]) =>
      button(sign, action, { className: "quiet", title: does, "aria-label": `${does} ${title}` }),
    );
    return element("li", { className: isOpen ? "chat open" : "chat" }, name, ...buttons);
  }

  /** @param {string} id @param {string} title */
  async #rename(id, title) {
    const name = await askForText("Rename this chat", "Name", title);
    const conversation = name === null ? undefined : await this.history.get(id);
    if (!conversation || name === null) return;
    conversation.name = name.trim();
    await this.history.put(conversation);
    await this.show();
    if (id === this.#current) this.open(id, this.#words);
  }

  #more() {
    this.#shown += PAGE;
    return this.show();
  }

  /** @param {string} id */
  async #exportOne(id) {
    const conversation = await this.history.get(id);
    if (conversation) await exportChat(conversation);
  }

  /** @param {string} id @param {string} title */
  async #remove(id, title) {
    const conversation = await this.history.get(id);
    const wasOpen = id === this.#current;
    await this.history.remove(id);
    await this.show();
    if (wasOpen) this.open(null);
    const undo = button("Undo", () => conversation && this.#restore(conversation, wasOpen));
    showNotice(`“${title}” is deleted.`, undo);
    undo.focus();
  }

  /** @param {Conversation} conversation @param {boolean} opens */
  async #restore(conversation, opens) {
    await this.history.restore(conversation);
    hideNotice();
    await this.show();
    if (opens) this.open(conversation.id);
  }
}

/** The text of a file. Throws FileError if it is not UTF-8.
 * @param {ArrayBuffer} bytes
 * @param {string} name
 */
export function decoded(bytes, name) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new FileError(`${name}: the file is not UTF-8: save it as UTF-8`);
  }
}
