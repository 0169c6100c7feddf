// @ts-check
/** Conversations: as the page stores them, as a request has them, and as lines of training data.
 *
 *     {id, models: ["A", "B"], system: "", exchanges: [{asked: "2*3?", answers: [answer, answer]}]}
 *
 * `asked` is the user's message, and each model has an answer of its own to it. An answer is {model, parts, …}, and its
 * parts are texts, calls of a tool and their outputs: [{kind: "call", text: "2*3"}, {kind: "output", text: "6"},
 * {kind: "text", text: "It is 6."}]. A line has the format `messages`, which `prepare` and the terminal read, too.
 */

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ model: string | null, parts: Part[], finish: string | null, problem: string | null,
 *   timings: Timings | null, promptIds: number[], ids: number[] }} Answer */
/** @typedef {{ asked: string, answers: Answer[] }} Exchange the user's message, and an answer of each model */
/** @typedef {{ id: string, revision: number, updated: number, models: string[], system: string,
 *   exchanges: Exchange[] }} Conversation `revision` counts how often it was saved */
/** @typedef {{ role: string, content: string, tool_calls?: object[] }} Message an entry of a line or a request */

const TITLE_LENGTH = 60;
const MAX_LENGTH = 2_000_000; // characters of a line: a request for its next answer has at most 2 MB
const ROLES = ["system", "user", "assistant", "tool"];

/** An error in a file; the message says where. */
export class FileError extends Error {}

/** A conversation without messages.
 * @param {string[]} models
 * @returns {Conversation}
 */
export function newConversation(models, system = "") {
  return { id: newId(), revision: 0, updated: Date.now(), models, system, exchanges: [] };
}

/** 24 hexadecimal digits. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An empty answer.
 * @param {string | null} model
 * @returns {Answer}
 */
export function newAnswer(model) {
  return { model, parts: [], finish: null, problem: null, timings: null, promptIds: [], ids: [] };
}

/** The title of a conversation: the beginning of the first question.
 * @param {Pick<Conversation, "exchanges">} conversation
 */
export function titleOf({ exchanges }) {
  const words = (exchanges[0]?.asked ?? "").slice(0, 1000).trim().split(/\s+/).join(" ");
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
 * @param {Pick<Answer, "parts">} answer
 */
export function hasText({ parts }) {
  return parts.some((part) => part.text.trim() !== "");
}

/** The messages of a request for a model's answer to the exchange `last`, and the parts to be continued, if any.
 * @param {Conversation} conversation
 * @param {number} column
 * @param {number} last
 * @param {Part[]} continued
 * @returns {Message[]}
 */
export function messagesFor(conversation, column, last, continued = []) {
  return [
    ...earlierMessages(conversation, column, conversation.exchanges.slice(0, last)),
    { role: "user", content: conversation.exchanges[last].asked },
    ...messagesOfParts(continued),
  ];
}

/** Conversations as a file: one line for each, or two for one with two models; without questions that have no answer.
 * @param {Conversation[]} conversations
 */
export function toLines(conversations) {
  return conversations
    .flatMap((one) => {
      const first = earlierMessages(one, 0, one.exchanges);
      return one.models.length > 1 ? [first, earlierMessages(one, 1, one.exchanges)] : [first];
    })
    .filter((messages) => messages.some(({ role }) => role === "user"))
    .map((messages) => `${JSON.stringify({ messages })}\n`)
    .join("");
}

/** The system prompt, and the exchanges that a model has answered.
 * @param {Conversation} conversation @param {number} column @param {Exchange[]} exchanges
 * @returns {Message[]}
 */
function earlierMessages({ system }, column, exchanges) {
  const answered = exchanges.filter(({ answers }) => hasText(answers[column]));
  return [
    ...(system.trim() ? [{ role: "system", content: system }] : []),
    ...answered.flatMap(({ asked, answers }) => [
      { role: "user", content: asked },
      ...messagesOfParts(answers[column].parts),
    ]),
  ];
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

/** The conversations of a file. Throws FileError with the place of a line that is not a conversation.
 * @param {string} text
 * @param {string} name
 * @param {string[]} models
 */
export function readLines(text, name, models) {
  const conversations = [];
  for (const [index, line] of text.replace(/^\ufeff/, "").split("\n").entries()) {
    if (!line.trim()) continue;
    try {
      if (line.length > MAX_LENGTH) throw new FileError(`over ${MAX_LENGTH / 1e6} MB: too long for a chat`);
      conversations.push(toConversation(JSON.parse(line)?.messages, models));
    } catch (error) {
      if (!(error instanceof FileError || error instanceof SyntaxError)) throw error;
      throw new FileError(`${name}:${index + 1}: ${error.message}`);
    }
  }
  if (!conversations.length) throw new FileError(`${name}: there is no conversation in the file`);
  return conversations;
}

/** @param {unknown} messages @param {string[]} models @returns {Conversation} */
function toConversation(messages, models) {
  if (!Array.isArray(messages)) throw new FileError('expected an object with a list of "messages"');
  const conversation = newConversation(models);
  const { exchanges } = conversation;
  messages.forEach((message, index) => {
    const { role, content } = message ?? {};
    if (!ROLES.includes(role)) {
      throw new FileError(`unknown role ${JSON.stringify(role) ?? "(none)"}: expected one of ${ROLES.join(", ")}`);
    }
    if (role === "system" && index === 0) conversation.system = contentText(content);
    else if (role === "user") exchanges.push({ asked: contentText(content), answers: [newAnswer(null)] });
    else if (role === "system" || !exchanges.length) throw new FileError(`a message of the ${role} is out of place`);
    else addMessage(exchanges[exchanges.length - 1].answers[0], message);
  });
  const complete = exchanges.slice(0, Math.max(1, exchanges.length - 1)); // the last question may have no answer yet
  if (!complete.length) throw new FileError("expected a message of the user and one of the assistant");
  if (!complete.every(({ answers }) => hasText(answers[0]))) throw new FileError("a message has no answer");
  return conversation;
}

/** Add a message of the assistant or its tool to an answer. An output goes to the first call that has none.
 * @param {Answer} answer
 * @param {any} message
 */
function addMessage({ parts }, { role, content, tool_calls: calls }) {
  if (role === "tool") {
    const call = parts.findIndex(({ kind }, at) => kind === "call" && parts[at + 1]?.kind !== "output");
    if (call < 0) throw new FileError("a tool's output needs a call before it");
    parts.splice(call + 1, 0, { kind: "output", text: contentText(content) });
    return;
  }
  if (calls && !Array.isArray(calls)) throw new FileError("tool_calls: expected a list");
  addParts(parts, [{ kind: "text", text: content === null && calls?.length ? "" : contentText(content) }]);
  for (const call of calls ?? []) parts.push({ kind: "call", text: expressionOf(call) });
}

/** @param {any} content @returns {string} */
function contentText(content) {
  const texts = Array.isArray(content) ? content.map((part) => part?.type === "text" && part.text) : [content];
  if (!texts.every((text) => typeof text === "string")) throw new FileError("content: expected a text");
  return texts.join("").toWellFormed();
}

/** The expression of a call of the calculator; calls of other functions are shown as JSON.
 * @param {any} call
 * @returns {string}
 */
function expressionOf(call) {
  const { name, arguments: given = "{}" } = call?.function ?? {};
  const values = typeof given === "string" ? JSON.parse(given) : given;
  if (name === "calculator" && typeof values?.expression === "string") return values.expression;
  return JSON.stringify({ name, arguments: values });
}
