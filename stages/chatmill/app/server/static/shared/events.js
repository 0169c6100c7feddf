// @ts-check
/** Server-sent events. A browser's EventSource cannot be used, because it sends neither a body nor a key. */

/** Reads the data of server-sent events from bytes that may be split anywhere. */
export class EventReader {
  #decoder = new TextDecoder();
  #rest = ""; // the last line, which is incomplete
  /** @type {string[]} */
  #data = [];

  /** The data of the events that these bytes complete.
   * @param {Uint8Array} bytes
   * @returns {string[]}
   */
  push(bytes) {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a last \r may be half of \r\n
    this.#rest = lines.pop() ?? "";
    const events = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (!line && this.#data.length) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }
}
