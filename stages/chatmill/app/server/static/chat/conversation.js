// @ts-check
/** Conversations as the page stores them: messages and answers.
 *
 *     {id, models: ["A", "B"], system: "", exchanges: [{asked: "2*3?", answers: [answer, answer]}]}
 *
 * `asked` is the user's message, and each model has an answer of its own to it. An answer is {model, parts, …}, and its
 * parts are texts, calls of a tool and their outputs: [{kind: "call", text: "2*3"}, {kind: "output", text: "6"},
 * {kind: "text", text: "It is 6."}].
 */

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ model: string | null, parts: Part[], finish: string | null, problem: string | null,
 *   timings: Timings | null, promptIds: number[], ids: number[] }} Answer */
/** @typedef {{ asked: string, answers: Answer[] }} Exchange the user's message, and an answer of each model */
/** @typedef {{ id: string, revision: number, updated: number, models: string[], system: string,
 *   exchanges: Exchange[], name?: string }} Conversation `revision` counts how often it was saved; `name` is given */
/** @typedef {{ role: string, content: string, tool_calls?: object[] }} Message an entry of a line or a request */

const TITLE_LENGTH = 60;

/** A conversation without messages.
 * @param {string[]} models
 * @returns {Conversation}
 */
export function newConversation(models, system = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, revision: 0, updated: Date.now(), models, system, exchanges: [] };
}

/** An empty answer.
 * @param {string | null} model
 * @returns {Answer}
 */
export function newAnswer(model) {
  return { model, parts: [], finish: null, problem: null, timings: null, promptIds: [], ids: [] };
}

/** The title of a conversation: the name that the user gave it, or the beginning of the first question.
 * @param {Pick<Conversation, "exchanges" | "name">} conversation
 */
export function titleOf(conversation) {
  const text = conversation.name || conversation.exchanges[0]?.asked || "";
  const words = text.slice(0, 1000).trim().split(/\s+/).join(" ");
  return [...words].slice(0, TITLE_LENGTH).join("") || "New chat";
}

/** The text of parts, without calls and their outputs.
 * @param {Part[]} parts
 */
export function textOf(parts) {
  return parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** Append parts to others; adjacent texts are merged.
 * @param {Part[]} parts
 * @param {Part[]} added
 */
export function addParts(parts, added) {
  for (const { kind, text } of added) {
    const last = parts.at(-1);
    if (kind === "text" && last?.kind === "text") last.text += text;
    else if (kind !== "text" || text) parts.push({ kind, text });
  }
}

/** Whether any part of an answer has text that is not white space.
 * @param {Pick<Answer, "parts"> | undefined} answer
 * @returns {boolean}
 */
export function hasText(answer) {
  return answer?.parts.some((part) => part.text.trim() !== "") ?? false;
}

/** The messages of a request for a model's answer to the exchange `last`, and the parts to be continued, if any.
 * @param {Conversation} conversation
 * @param {number} column
 * @param {number} last
 * @param {Part[]} continued
 * @returns {Message[]}
 */
export function messagesFor(conversation, column, last, continued = []) {
  const earlier = conversation.exchanges.slice(0, last).filter(({ answers }) => hasText(answers[column]));
  return [
    ...systemMessages(conversation),
    ...earlier.flatMap((exchange) => messagesOfExchange(exchange, column)),
    userMessage(conversation.exchanges[last].asked),
    ...messagesOfParts(continued),
  ];
}

/** The messages of a conversation with one of its models, without questions that it has not answered.
 * @param {Conversation} conversation
 * @param {number} column
 * @returns {Message[]}
 */
export function answeredMessages(conversation, column) {
  const answered = conversation.exchanges.filter(({ answers }) => hasText(answers[column]));
  const messages = answered.flatMap((exchange) => messagesOfExchange(exchange, column));
  return answered.length ? [...systemMessages(conversation), ...messages] : [];
}

/** @param {Conversation} conversation @returns {Message[]} */
function systemMessages({ system }) {
  return system.trim() ? [{ role: "system", content: system }] : [];
}

/** @param {Exchange} exchange @param {number} column @returns {Message[]} */
function messagesOfExchange({ asked, answers }, column) {
  return [userMessage(asked), ...messagesOfParts(answers[column].parts)];
}

/** @param {string} content @returns {Message} */
function userMessage(content) {
  return { role: "user", content };
}

/** @param {Part[]} parts @returns {Message[]} */
function messagesOfParts(parts) {
  return parts.map(({ kind, text }) => {
    if (kind === "text") return { role: "assistant", content: text };
    if (kind === "output") return { role: "tool", content: text };
    const call = { name: "calculator", arguments: JSON.stringify({ expression: text }) };
    return { role: "assistant", content: "", tool_calls: [{ type: "function", function: call }] };
  });
}
