// @ts-check
/** The conversations that this browser stores, in IndexedDB, or in memory while the page is open.
 *
 * Tabs share them. When a tab saves a conversation that another tab has saved since, it saves a copy with an id of its
 * own, so that no message is overwritten.
 */

import { newConversation, titleOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {{ id: string, title: string, updated: number }} Title an entry of the list */
/** @typedef {{ id?: string, deleted?: boolean }} Change a change that another tab has made */
/** @typedef {StoredHistory | MemoryHistory} History */

const NAME = globalThis.document?.documentElement.dataset.history ?? "chatmill"; // pages from disk may share a store
const CONVERSATIONS = "conversations";
const TITLES = "titles";

/** The stored conversations; `lasts` is whether they outlive the page.
 * @returns {Promise<History>}
 */
export async function openHistory() {
  try {
    return new StoredHistory(await openDatabase());
  } catch (error) {
    console.info(`chats are not saved: ${error}`);
    return new MemoryHistory();
  }
}

class StoredHistory {
  lasts = true;
  /** @type {Set<string>} */
  removed = new Set(); // ids that are not saved again when their last answer ends
  #channel = new BroadcastChannel(NAME);

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close();
  }

  /** Call a function for each change that another tab makes.
   * @param {(change: Change) => unknown} listener
   */
  onChange(listener) {
    this.#channel.onmessage = ({ data }) => listener(data);
  }

  /** The title of every conversation, the latest first.
   * @returns {Promise<Title[]>}
   */
  async titles() {
    return (await requestResult(this.#store(TITLES, "readonly").getAll())).sort(latestFirst);
  }

  /** The conversation with an id; undefined if there is none.
   * @param {string} id
   * @returns {Promise<Conversation | undefined>}
   */
  get(id) {
    return requestResult(this.#store(CONVERSATIONS, "readonly").get(id));
  }

  /** Every conversation.
   * @returns {Promise<Conversation[]>}
   */
  all() {
    return requestResult(this.#store(CONVERSATIONS, "readonly").getAll());
  }

  /** Save a conversation; it gets a new id if another tab has saved it since.
   * @param {Conversation} conversation
   */
  async put(conversation) {
    const transaction = this.database.transaction([CONVERSATIONS, TITLES], "readwrite");
    const before = await requestResult(transaction.objectStore(CONVERSATIONS).get(conversation.id));
    if (before && before.revision !== conversation.revision) conversation.id = newConversation([]).id;
    const revision = conversation.revision + 1;
    write(transaction, { ...conversation, revision });
    await transactionDone(transaction);
    conversation.revision = revision;
    this.#channel.postMessage({ id: conversation.id });
  }

  /** Save a conversation as it is, also one that was removed. @param {Conversation} conversation */
  async restore(conversation) {
    const transaction = this.database.transaction([CONVERSATIONS, TITLES], "readwrite");
    write(transaction, conversation);
    this.removed.delete(conversation.id);
    await transactionDone(transaction);
    this.#channel.postMessage({});
  }

  /** @param {string} id */
  async remove(id) {
    this.removed.add(id);
    const transaction = this.database.transaction([CONVERSATIONS, TITLES], "readwrite");
    for (const name of [CONVERSATIONS, TITLES]) transaction.objectStore(name).delete(id);
    await transactionDone(transaction);
    this.#channel.postMessage({ id, deleted: true });
  }

  /** @param {string} name @param {IDBTransactionMode} mode */
  #store(name, mode) {
    return this.database.transaction(name, mode).objectStore(name);
  }
}

/** A history in memory, for browsers without IndexedDB. */
class MemoryHistory {
  lasts = false;
  /** @type {Set<string>} */
  removed = new Set();
  /** @type {Map<string, Conversation>} */
  #conversations = new Map();

  /** @param {(change: Change) => unknown} _ there is no other tab */
  onChange(_) {}

  async titles() {
    return [...this.#conversations.values()].map(summary).sort(latestFirst);
  }

  /** @param {string} id */
  async get(id) {
    return structuredClone(this.#conversations.get(id));
  }

  async all() {
    return [...this.#conversations.values()];
  }

  /** @param {Conversation} conversation */
  async put(conversation) {
    await this.restore(conversation);
  }

  /** @param {Conversation} conversation */
  async restore(conversation) {
    this.#conversations.set(conversation.id, structuredClone(conversation));
    this.removed.delete(conversation.id);
  }

  /** @param {string} id */
  async remove(id) {
    this.removed.add(id);
    this.#conversations.delete(id);
  }
}

/** @param {{ updated: number }} one @param {{ updated: number }} other */
export function latestFirst(one, other) {
  return other.updated - one.updated;
}

/** @param {Conversation} conversation @returns {Title} */
function summary(conversation) {
  return { id: conversation.id, title: titleOf(conversation), updated: conversation.updated };
}

/** @param {IDBTransaction} transaction @param {Conversation} conversation */
function write(transaction, conversation) {
  transaction.objectStore(CONVERSATIONS).put(conversation);
  transaction.objectStore(TITLES).put(summary(conversation));
}

function openDatabase() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => {
    for (const name of [CONVERSATIONS, TITLES]) request.result.createObjectStore(name, { keyPath: "id" });
  };
  return requestResult(request);
}

/** @template Value @param {IDBRequest<Value>} request @returns {Promise<Value>} */
function requestResult(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBTransaction} transaction @returns {Promise<unknown>} */
function transactionDone(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser aborted the transaction"));
  });
}
