// @ts-check
/** Server-sent events. The reader is ours because a browser's EventSource sends neither a body nor a key. */

/** The data of server-sent events, from bytes cut anywhere. */
export class EventReader {
  #decoder = new TextDecoder();
  #rest = ""; // of the last line, whose end has not come
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
