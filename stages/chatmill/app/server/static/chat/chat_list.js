// @ts-check
/** The list of the saved conversations, and their import and export as training data. */

import { FileError, readLines, titleOf, toLines } from "./conversation.js";
import { hideNotice, showNotice, showProblem } from "./notice.js";
import { button, element } from "../shared/dom.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const MAX_BYTES = 10_000_000; // of a file to import

/** The list inside a node; `open` is called with the id of the chosen conversation, or null if that was deleted. */
export class ChatList {
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
    const rows = (await this.history.all()).map((conversation) => this.#row(conversation));
    this.node.replaceChildren(...(rows.length ? rows : [element("li", { className: "hint" }, "No chats yet.")]));
  }

  /** Download all conversations as one file. */
  async exportAll() {
    download(await this.history.all(), "chats");
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

  /** @param {Conversation} conversation */
  #row(conversation) {
    const title = titleOf(conversation);
    const isOpen = conversation.id === this.#current;
    const name = button(title, () => this.open(conversation.id), {
      className: "title",
      ariaCurrent: isOpen ? "page" : null,
    });
    const save = button("↓", () => download([conversation], "chat"), {
      className: "quiet",
      title: "Export",
      "aria-label": `Export ${title}`,
    });
    const remove = button("×", () => this.#remove(conversation), {
      className: "quiet",
      title: "Delete",
      "aria-label": `Delete ${title}`,
    });
    return element("li", { className: isOpen ? "chat open" : "chat" }, name, save, remove);
  }

  /** @param {Conversation} conversation */
  async #remove(conversation) {
    const wasOpen = conversation.id === this.#current;
    await this.history.remove(conversation.id);
    await this.show();
    if (wasOpen) this.open(null);
    const undo = button("Undo", () => this.#restore(conversation, wasOpen));
    showNotice(`“${titleOf(conversation)}” is deleted.`, undo);
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

/** Download conversations as training data. The name is like those that the terminal gives: chat-20260131-154500.jsonl.
 * @param {Conversation[]} conversations
 * @param {string} stem
 */
function download(conversations, stem) {
  const lines = toLines(conversations);
  if (!lines) return showNotice("There is nothing to export: no question has been answered yet.");
  const now = new Date();
  const local = new Date(now.getTime() - now.getTimezoneOffset() * 60_000).toISOString();
  const time = local.slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
  const url = URL.createObjectURL(new Blob([lines], { type: "application/octet-stream" }));
  element("a", { href: url, download: `${stem}-${time}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // when the browser has read it
}

/** @param {ArrayBuffer} bytes @param {string} name */
function decoded(bytes, name) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new FileError(`${name}: the file is not UTF-8: save it as UTF-8`);
  }
}
