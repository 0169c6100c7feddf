/** One answer of one model: how it is asked for, and how it is shown. */

import { ApiError, streamChat } from "./api.js";
import { addParts, isSaid } from "./conversation.js";
import { button, counted, element, sentence } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { showTokens } from "./tokens.js";

const PACE = 250; // characters of an open block that may be drawn anew in a millisecond: long ones are drawn less often
const NOTES = {
  length: "It was cut off where it reached its most tokens, or the end of the context.",
  stopped: "Stopped.",
};

/** Put what a model answers into `answer` as it comes; `changed` is called after each piece. */
export async function streamInto(answer, request, signal, changed) {
  Object.assign(answer, { finish: null, problem: null, timings: null });
  try {
    for await (const chunk of streamChat({ ...request, return_token_ids: true }, signal)) {
      take(answer, chunk);
      changed();
    }
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else if (error instanceof ApiError) Object.assign(answer, { finish: "error", problem: told(error) });
    else throw error;
  }
}

function take(answer, chunk) {
  if (chunk.prompt_token_ids) Object.assign(answer, { promptIds: chunk.prompt_token_ids, ids: [] });
  if (chunk.timings) answer.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  addParts(answer.parts, choice.delta.parts ?? [{ kind: "text", text: choice.delta.content ?? "" }]);
  for (const id of choice.token_ids ?? []) answer.ids.push(id);
  answer.finish = choice.finish_reason ?? answer.finish;
}

/** What went wrong, as a sentence. */
function told({ message, status, retryAfter }) {
  const isBusy = status === 429 || status === 503;
  const wait = isBusy && retryAfter ? ` Try again in ${counted(retryAfter, "second")}.` : "";
  return sentence(message) + wait;
}

/** An answer on the page; what comes is shown at most once in each frame. */
export class AnswerView {
  #body = element("div", { className: "said" });
  #status = element("p", { className: "hint", hidden: true });
  #problem = element("div", { className: "problem", role: "alert", hidden: true });
  #figures = element("p", { className: "figures" });
  #actions = element("div", { className: "actions" });
  #tokens = element("div", { className: "token-view", hidden: true });
  #parts = []; // a view for each part
  #frame = 0;
  #drawn = 0; // when, in milliseconds

  /** `actions` are {regenerate, goOn, copy}. */
  constructor(answer, actions) {
    this.answer = answer;
    this.actions = actions;
    const name = answer.model ?? "Imported answer";
    const heading = element("h2", { className: "who" }, name);
    this.node = element("section", { className: "answer", "aria-label": `Answer of ${name}` }, heading, this.#body);
    this.node.append(this.#status, this.#problem, this.#figures, this.#actions, this.#tokens);
    this.finish();
  }

  /** It is being asked for: `status` stands there until something comes. */
  begin(status) {
    this.node.setAttribute("aria-busy", "true");
    this.#status.textContent = status;
    this.#status.hidden = false;
    this.#problem.hidden = this.#tokens.hidden = true;
    this.#figures.replaceChildren();
    this.#actions.replaceChildren();
  }

  /** Something came. */
  changed() {
    this.#frame ||= requestAnimationFrame((now) => this.#draw(now));
  }

  /** It is all there, or broke off. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show();
    this.node.removeAttribute("aria-busy");
    this.#status.hidden = true;
    this.#problem.hidden = !this.answer.problem;
    const again = button("Try again", () => this.actions.regenerate());
    this.#problem.replaceChildren(element("p", {}, this.answer.problem ?? ""), again);
    this.#figures.replaceChildren(...figures(this.answer));
    this.#actions.replaceChildren(...this.#buttons());
  }

  #draw(now) {
    this.#frame = 0;
    const isEarly = now - this.#drawn < (this.#parts.at(-1)?.unsettled ?? 0) / PACE;
    if (isEarly) this.changed();
    else {
      this.#drawn = now;
      this.#show();
    }
  }

  #show() {
    const { parts } = this.answer;
    this.#status.hidden ||= parts.length > 0;
    for (let index = Math.max(this.#parts.length - 1, 0); index < parts.length; index += 1) {
      this.#parts[index] ??= this.#partView(parts, index);
      this.#parts[index].update(parts[index].text);
    }
  }

  #partView(parts, index) {
    const { kind } = parts[index];
    const node = element("div", { className: kind });
    if (kind !== "text") node.setAttribute("role", "group");
    this.#body.append(node);
    return kind === "text" ? new MarkdownView(node) : new ToolView(node, kind);
  }

  #buttons() {
    const { regenerate, goOn, copy } = this.actions;
    const said = isSaid(this.answer);
    const tokens = button("Tokens", () => this.#toggleTokens(tokens), { className: "quiet", ariaExpanded: "false" });
    return [
      ...(said ? [button("Copy", () => copy(this.answer), { className: "quiet" })] : []),
      ...(this.answer.ids.length ? [tokens] : []),
      ...(this.answer.problem ? [] : [button("Regenerate", regenerate, { className: "quiet last-only" })]),
      ...(said ? [button("Continue", goOn, { className: "quiet last-only" })] : []),
    ];
  }

  async #toggleTokens(opener) {
    this.#tokens.hidden = !this.#tokens.hidden;
    opener.ariaExpanded = String(!this.#tokens.hidden);
    if (this.#tokens.hidden) return;
    try {
      await showTokens(this.answer, this.#tokens);
      this.#tokens.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#tokens.replaceChildren(element("p", { className: "problem", role: "alert" }, told(error)));
    }
  }
}

/** What the tool was asked, or what it answered. */
class ToolView {
  constructor(node, kind) {
    const name = kind === "call" ? "asked the calculator" : "it answered";
    this.words = element("code");
    node.setAttribute("aria-label", name);
    node.append(element("span", { className: "tool-name" }, name), " ", this.words);
  }

  update(text) {
    this.words.textContent = text;
  }
}

/** How fast it came, and how much of the context it takes. */
function figures({ finish, timings, ids }) {
  const facts = timings
    ? [
        ["tokens/s", rounded(timings.tokens_per_second), "after the first token"],
        ["ms to the first token", rounded(timings.first_token_ms), "from the request, at the server"],
        ["tokens", ids.length.toLocaleString("en"), "of the answer"],
        ["tokens of context", share(timings), "tokens of the prompt and the answer, of all that the model reads"],
      ]
    : [];
  const spans = facts.map(([unit, value, title]) => element("span", { title }, element("b", {}, value), ` ${unit}`));
  const notes = [NOTES[finish], dropped(timings)].filter(Boolean);
  return [...spans, ...notes.map((note) => element("span", { className: "told" }, note))];
}

function share({ prompt_tokens: asked, completion_tokens: said, context }) {
  return `${(asked + said).toLocaleString("en")} of ${context.toLocaleString("en")}`;
}

function dropped(timings) {
  const count = timings?.dropped_messages;
  return count ? `The context was too short: the oldest ${counted(count, "message")} left out.` : "";
}

function rounded(number) {
  if (!number) return "–"; // of one token there is no rate
  return number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
}
