// @ts-check
/** The field in which a message is written. */

/** A field that grows with its text; Enter calls `send`, and ↑ in an empty field calls `back`. */
export class Composer {
  /** @param {HTMLTextAreaElement} field @param {{ send: () => unknown, back: () => boolean }} actions */
  constructor(field, { send, back }) {
    this.field = field;
    field.addEventListener("input", () => this.#fit());
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return; // Enter may end a word in another script
      if (event.key === "Enter" && !event.shiftKey) send();
      else if (event.key !== "ArrowUp" || field.value || !back()) return;
      event.preventDefault();
    });
  }

  /** Append the text of a file to the message.
   * @param {string} text
   */
  add(text) {
    const { value } = this.field;
    this.field.value = value && !value.endsWith("\n") ? `${value}\n${text}` : value + text;
    this.#fit();
    this.field.focus();
  }

  get text() {
    return this.field.value;
  }

  clear() {
    this.field.value = "";
    this.#fit();
  }

  /** Focus the field, unless that opens an on-screen keyboard, which covers half of the page. */
  focus() {
    if (matchMedia("(pointer: fine)").matches) this.field.focus();
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`; // with its border
  }
}
