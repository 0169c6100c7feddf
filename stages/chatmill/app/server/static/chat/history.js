// @ts-check
/** The conversations that this browser stores, in IndexedDB, or in memory while the page is open.
 *
 * Tabs share them. When a tab saves a conversation that another tab has saved since, it saves a copy with an id of its
 * own, so that no message is overwritten.
 */

import { newId } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {{ id?: string, deleted?: boolean }} Change a change that another tab has made */

const NAME = globalThis.document?.documentElement.dataset.history ?? "chatmill"; // pages from disk may share a store
const STORE = "conversations";

export class History {
  /** @type {Set<string>} */
  removed = new Set(); // ids that are not saved again when their last answer ends
  /** @type {IDBDatabase | null} */
  #database = null;
  /** @type {Map<string, Conversation>} */
  #memory = new Map(); // used without a database
  #channel = new BroadcastChannel(NAME);

  /** Open the database, if the browser has one for this page. */
  async open() {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      this.#database = await resultOf(request);
      this.#database.onversionchange = () => this.#database?.close();
    } catch (error) {
      console.info(`chats are not saved: ${error}`);
    }
  }

  /** Whether the conversations outlive the page. */
  get lasts() {
    return this.#database !== null;
  }

  /** Call a function for each change that another tab makes.
   * @param {(change: Change) => unknown} listener
   */
  onChange(listener) {
    this.#channel.onmessage = ({ data }) => listener(data);
  }

  /** All conversations, the latest first.
   * @returns {Promise<Conversation[]>}
   */
  async all() {
    const found = this.#database ? await this.#transact((store) => resultOf(store.getAll())) : this.#memory.values();
    return [...found].sort((one, other) => other.updated - one.updated);
  }

  /** The conversation with an id; undefined if there is none.
   * @param {string} id
   * @returns {Promise<Conversation | undefined>}
   */
  async get(id) {
    if (!this.#database) return structuredClone(this.#memory.get(id));
    return this.#transact((store) => resultOf(store.get(id)));
  }

  /** Save a conversation; it gets a new id if another tab has saved it since.
   * @param {Conversation} conversation
   */
  async put(conversation) {
    const revision = await this.#transact(async (store) => {
      const before = await resultOf(store.get(conversation.id));
      if (before && before.revision !== conversation.revision) conversation.id = newId();
      const next = conversation.revision + 1;
      store.put({ ...conversation, revision: next });
      return next;
    });
    if (!this.#database) this.#memory.set(conversation.id, structuredClone(conversation));
    conversation.revision = revision ?? 1;
    this.#channel.postMessage({ id: conversation.id });
  }

  /** Save a conversation as it is, also one that was removed.
   * @param {Conversation} conversation
   */
  async restore(conversation) {
    this.removed.delete(conversation.id);
    await this.#transact((store) => store.put(conversation));
    if (!this.#database) this.#memory.set(conversation.id, structuredClone(conversation));
    this.#channel.postMessage({});
  }

  /** @param {string} id */
  async remove(id) {
    this.removed.add(id);
    this.#memory.delete(id);
    await this.#transact((store) => store.delete(id));
    this.#channel.postMessage({ id, deleted: true });
  }

  /** The result of requests in one transaction, once it is complete. Without a database nothing happens.
   * @param {(store: IDBObjectStore) => any} action
   * @returns {Promise<any>}
   */
  async #transact(action) {
    if (!this.#database) return undefined;
    const transaction = this.#database.transaction(STORE, "readwrite");
    const complete = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("the browser aborted the transaction"));
    });
    const [result] = await Promise.all([action(transaction.objectStore(STORE)), complete]);
    return result;
  }
}

/** @template Value @param {IDBRequest<Value>} request @returns {Promise<Value>} */
function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
