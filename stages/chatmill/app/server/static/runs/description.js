// @ts-check
/** The dialog in which the name and the note of a run are edited. */

import { describeRun } from "./requests.js";
import { byId } from "../shared/dom.js";
import { sentence } from "../shared/text_format.js";

/** @typedef {import("./requests.js").Run} Run */

/** The dialog of the page; `onSaved` gets the run as it was before, and as it is. */
export class DescriptionDialog {
  #dialog = byId("description", HTMLDialogElement);
  #name = byId("run-name", HTMLInputElement);
  #note = byId("run-note", HTMLTextAreaElement);
  #problem = byId("description-problem", HTMLElement);
  #save = byId("save-description", HTMLButtonElement);
  /** @type {Run | null} */
  #run = null;

  /** @param {() => string} ticket @param {(before: Run, after: Run) => void} onSaved */
  constructor(ticket, onSaved) {
    this.ticket = ticket;
    this.onSaved = onSaved;
    byId("cancel-description", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    byId("description-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /** Edit a run. @param {Run} run */
  open(run) {
    this.#run = run;
    this.#tell("");
    this.#name.value = run.label;
    this.#name.disabled = run.kind !== "experiment"; // git names the others
    this.#note.value = run.note;
    this.#dialog.showModal();
    this.#note.focus();
  }

  async #submit() {
    const run = this.#run;
    if (!run || this.#save.disabled) return;
    this.#save.disabled = true;
    this.#save.textContent = "Saving …";
    try {
      const description = { name: this.#name.value.trim(), note: this.#note.value, ticket: this.ticket() };
      this.onSaved(run, await describeRun(run, description));
      this.#dialog.close();
    } catch (error) {
      this.#tell(sentence(error instanceof Error ? error.message : String(error)));
    }
    this.#save.disabled = false;
    this.#save.textContent = "Save";
  }

  /** @param {string} problem */
  #tell(problem) {
    this.#problem.hidden = !problem;
    this.#problem.textContent = problem;
  }
}

/** Whether a run can be described: a run that has a commit.
 * @param {Run[]} ticked
 */
export function canDescribe(ticked) {
  return ticked.length === 1 && ticked[0].state === "done" && ticked[0].kind !== "workspace";
}
