/** The conversations that this browser keeps, in IndexedDB; where there is none, as long as the page is open.
 *
 * Tabs share them. One that keeps a conversation which another has kept since makes a second one of its own: nothing
 * that was said is written over.
 */

import { newConversation, titleOf } from "./conversation.js";

const NAME = "chatmill";
const WHOLE = "conversations";
const TITLES = "titles"; // {id, title, updated}: all that the list needs

/** The conversations that are kept; `lasts` is whether they outlive the page. */
export async function openHistory() {
  try {
    return new History(await openDatabase());
  } catch (error) {
    console.info(`chats are not kept: ${error.message}`);
    return new Memory();
  }
}

class History {
  lasts = true;
  removed = new Set(); // ids that an answer which was on its way is not to bring back
  #channel = new BroadcastChannel(NAME);

  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close();
  }

  /** Have a function hear of what other tabs keep and delete: {id, deleted}. */
  onChange(hear) {
    this.#channel.onmessage = ({ data }) => hear(data);
  }

  /** {id, title, updated} of every conversation, the latest first. */
  async titles() {
    const all = await settled(this.#store(TITLES, "readonly").getAll());
    return all.sort((one, other) => other.updated - one.updated);
  }

  /** The conversation of that id; undefined if there is none. */
  get(id) {
    return settled(this.#store(WHOLE, "readonly").get(id));
  }

  /** Every conversation. */
  all() {
    return settled(this.#store(WHOLE, "readonly").getAll());
  }

  /** Keep a conversation as it is now; under an id of its own if another tab has kept it since. */
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

  /** Keep conversations, all of them or none. */
  async putAll(conversations) {
    const transaction = this.database.transaction([WHOLE, TITLES], "readwrite");
    for (const conversation of conversations) write(transaction, conversation);
    await completed(transaction);
    this.#channel.postMessage({});
  }

  async remove(id) {
    this.removed.add(id);
    const transaction = this.database.transaction([WHOLE, TITLES], "readwrite");
    for (const name of [WHOLE, TITLES]) transaction.objectStore(name).delete(id);
    await completed(transaction);
    this.#channel.postMessage({ id, deleted: true });
  }

  #store(name, mode) {
    return this.database.transaction(name, mode).objectStore(name);
  }
}

/** The same without a place to keep anything. */
class Memory {
  lasts = false;
  removed = new Set();
  #kept = new Map();

  onChange() {}

  async titles() {
    return [...this.#kept.values()].map(summary).sort((one, other) => other.updated - one.updated);
  }

  async get(id) {
    return structuredClone(this.#kept.get(id));
  }

  async all() {
    return [...this.#kept.values()];
  }

  async put(conversation) {
    await this.putAll([conversation]);
  }

  async putAll(conversations) {
    for (const one of conversations) this.#kept.set(one.id, structuredClone(one));
  }

  async remove(id) {
    this.removed.add(id);
    this.#kept.delete(id);
  }
}

function summary(conversation) {
  return { id: conversation.id, title: titleOf(conversation), updated: conversation.updated };
}

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

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser has stopped it"));
  });
}
