// @ts-check
/** The conversations that this browser keeps, in IndexedDB; where there is none, as long as the page is open.
 *
 * Tabs share them. One that keeps a conversation which another has kept since makes a second one of its own: nothing
 * that was said is written over.
 */

import { newConversation, titleOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {{ id: string, title: string, updated: number }} Title all that the list needs */
/** @typedef {{ id?: string, deleted?: boolean }} Change what another tab has done */
/** @typedef {StoredHistory | UnstoredHistory} History */

const NAME = "chatmill";
const WHOLE = "conversations";
const TITLES = "titles";

/** The conversations that are kept; `lasts` is whether they outlive the page.
 * @returns {Promise<History>}
 */
export async function openHistory() {
  try {
    return new StoredHistory(await openDatabase());
  } catch (error) {
    console.info(`chats are not kept: ${error}`);
    return new UnstoredHistory();
  }
}

class StoredHistory {
  lasts = true;
  /** @type {Set<string>} */
  removed = new Set(); // ids that an answer which was on its way is not to bring back
  #channel = new BroadcastChannel(NAME);

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close();
  }

  /** Have a function hear of what other tabs keep and delete.
   * @param {(change: Change) => unknown} hear
   */
  onChange(hear) {
    this.#channel.onmessage = ({ data }) => hear(data);
  }

  /** The title of every conversation, the latest first.
   * @returns {Promise<Title[]>}
   */
  async titles() {
    return (await settled(this.#store(TITLES, "readonly").getAll())).sort(latestFirst);
  }

  /** The conversation of that id; undefined if there is none.
   * @param {string} id
   * @returns {Promise<Conversation | undefined>}
   */
  get(id) {
    return settled(this.#store(WHOLE, "readonly").get(id));
  }

  /** Every conversation.
   * @returns {Promise<Conversation[]>}
   */
  all() {
    return settled(this.#store(WHOLE, "readonly").getAll());
  }

  /** Keep a conversation as it is now; under an id of its own if another tab has kept it since.
   * @param {Conversation} conversation
   */
  async put(conversation) {
    const transaction = this.database.transaction([WHOLE, TITLES], "readwrite");
    const before = await settled(transaction.objectStore(WHOLE).get(conversation.id));
    if (before && before.revision !== conversation.revision) conversation.id = newConversation([]).id;
    const revision = conversation.revision + 1;
    write(transaction, { ...conversation, revision });
    await completed(transaction);
    conversation.revision = revision;
    this.#channel.postMessage({ id: conversation.id });
  }

  /** Keep conversations, all of them or none.
   * @param {Conversation[]} conversations
   */
  async putAll(conversations) {
    const transaction = this.database.transaction([WHOLE, TITLES], "readwrite");
    for (const conversation of conversations) write(transaction, conversation);
    await completed(transaction);
    this.#channel.postMessage({});
  }

  /** @param {string} id */
  async remove(id) {
    this.removed.add(id);
    const transaction = this.database.transaction([WHOLE, TITLES], "readwrite");
    for (const name of [WHOLE, TITLES]) transaction.objectStore(name).delete(id);
    await completed(transaction);
    this.#channel.postMessage({ id, deleted: true });
  }

  /** @param {string} name @param {IDBTransactionMode} mode */
  #store(name, mode) {
    return this.database.transaction(name, mode).objectStore(name);
  }
}

/** The same without a place to keep anything. */
class UnstoredHistory {
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
    await this.putAll([conversation]);
  }

  /** @param {Conversation[]} conversations */
  async putAll(conversations) {
    for (const one of conversations) this.#conversations.set(one.id, structuredClone(one));
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
  transaction.objectStore(WHOLE).put(conversation);
  transaction.objectStore(TITLES).put(summary(conversation));
}

function openDatabase() {
  const opening = indexedDB.open(NAME, 1);
  opening.onupgradeneeded = () => {
    for (const name of [WHOLE, TITLES]) opening.result.createObjectStore(name, { keyPath: "id" });
  };
  return settled(opening);
}

/** @template Value @param {IDBRequest<Value>} request @returns {Promise<Value>} */
function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBTransaction} transaction @returns {Promise<unknown>} */
function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser has stopped it"));
  });
}
