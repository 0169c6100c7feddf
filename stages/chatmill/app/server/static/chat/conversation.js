// @ts-check
/** Conversations as the page keeps them, and the lines of the training format that they are written to and read from.
 *
 *     {id, models: ["A", "B"], system: "", exchanges: [{asked: "2*3?", answers: [answer, answer]}]}
 *
 * Each model has its own answers to what was asked. An answer is {model, parts, …}, and its parts are texts, calls of
 * a tool and their outputs: [{kind: "call", text: "2*3"}, {kind: "output", text: "6"}, {kind: "text", text: "It is
 * 6."}].
 *
 * The reader of the lines is ours because the format is: it is the one that `prepare` trains on.
 */

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ model: string | null, parts: Part[], finish: string | null, problem: string | null,
 *   timings: Timings | null, promptIds: number[], ids: number[] }} Answer */
/** @typedef {{ asked: string, answers: Answer[] }} Exchange what the user said, and an answer of each model */
/** @typedef {{ id: string, revision: number, updated: number, models: string[], system: string,
 *   exchanges: Exchange[] }} Conversation `revision` counts how often it was kept */
/** @typedef {{ role: string, content: string, tool_calls?: object[] }} Message an entry of a line or a request */
/** @typedef {["system" | "user" | "assistant" | Part["kind"], string]} Step what a message says or does */
/** @typedef {{ role: string, parts: Part[] }} Turn */

const ROLES = ["system", "user", "assistant", "tool"];
const TITLE_LENGTH = 60;

/** What is wrong with a file, and where. */
export class FileError extends Error {}

/** An entry that is no conversation; the message says why. */
class Unusable extends Error {}

/** A conversation in which nothing was said.
 * @param {string[]} models
 * @returns {Conversation}
 */
export function newConversation(models, system = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, revision: 0, updated: Date.now(), models, system, exchanges: [] };
}

/** An answer to which nothing has come yet.
 * @param {string | null} model
 * @returns {Answer}
 */
export function newAnswer(model) {
  return { model, parts: [], finish: null, problem: null, timings: null, promptIds: [], ids: [] };
}

/** What the list calls a conversation: the beginning of what was asked first.
 * @param {Pick<Conversation, "exchanges">} conversation
 */
export function titleOf(conversation) {
  const words = (conversation.exchanges[0]?.asked ?? "").slice(0, 1000).trim().split(/\s+/).join(" ");
  return [...words].slice(0, TITLE_LENGTH).join("") || "New chat";
}

/** What is said, without calls and their outputs.
 * @param {Part[]} parts
 */
export function textOf(parts) {
  return parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** Put new parts after others; texts that adjoin become one.
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

/** Whether an answer says anything.
 * @param {Pick<Answer, "parts"> | undefined} answer
 * @returns {boolean}
 */
export function isSaid(answer) {
  return answer?.parts.some((part) => part.text.trim() !== "") ?? false;
}

/** The messages that ask a model for its answer to the exchange `last`; with what it has said of it, to go on.
 * @param {Conversation} conversation
 * @param {number} column
 * @param {number} last
 * @param {Part[]} continued
 * @returns {Message[]}
 */
export function messagesFor(conversation, column, last, continued = []) {
  const earlier = conversation.exchanges.slice(0, last).filter(({ answers }) => isSaid(answers[column]));
  return [
    ...opening(conversation),
    ...earlier.flatMap(({ asked, answers }) => [userMessage(asked), ...entries(answers[column].parts)]),
    userMessage(conversation.exchanges[last].asked),
    ...entries(continued),
  ];
}

/** A conversation with one of its models as a line; "" where nothing was answered. `readLines` reads it.
 * @param {Conversation} conversation
 * @param {number} column
 */
export function toLine(conversation, column) {
  const said = conversation.exchanges.filter(({ answers }) => isSaid(answers[column]));
  if (!said.length) return "";
  const turns = said.flatMap(({ asked, answers }) => [userMessage(asked), ...entries(answers[column].parts)]);
  return `${JSON.stringify({ messages: [...opening(conversation), ...turns] })}\n`;
}

/** Conversations as a file: one line for each, or two for one with two models.
 * @param {Conversation[]} conversations
 */
export function toLines(conversations) {
  return conversations.map((one) => toLine(one, 0) + (one.models.length > 1 ? toLine(one, 1) : "")).join("");
}

/** The conversations of a file. Throws FileError with the place of a line that is none.
 * @param {string} text
 * @param {string} name
 * @param {string[]} models
 */
export function readLines(text, name, models) {
  const conversations = [];
  for (const [index, line] of text.replace(/^\ufeff/, "").split("\n").entries()) {
    if (!line.trim()) continue;
    try {
      conversations.push(toConversation(JSON.parse(line), models));
    } catch (error) {
      if (!(error instanceof Unusable || error instanceof SyntaxError)) throw error;
      throw new FileError(`${name}:${index + 1}: ${error.message}`);
    }
  }
  if (!conversations.length) throw new FileError(`${name}: there is no conversation in it`);
  return conversations;
}

/** @param {Conversation} conversation @returns {Message[]} */
function opening({ system }) {
  return system.trim() ? [{ role: "system", content: system }] : [];
}

/** @param {string} content @returns {Message} */
function userMessage(content) {
  return { role: "user", content };
}

/** @param {Part[]} parts @returns {Message[]} */
function entries(parts) {
  return parts.map(({ kind, text }) => {
    if (kind === "text") return { role: "assistant", content: text };
    if (kind === "output") return { role: "tool", content: text };
    const call = { name: "calculator", arguments: JSON.stringify({ expression: text }) };
    return { role: "assistant", content: "", tool_calls: [{ type: "function", function: call }] };
  });
}

/** @param {any} row what a line holds @param {string[]} models @returns {Conversation} */
function toConversation(row, models) {
  if (!Array.isArray(row?.messages)) throw new Unusable('expected an object with a list of "messages"');
  const turns = joined(row.messages.flatMap(steps));
  const system = turns[0]?.role === "system" ? turns.splice(0, 1)[0].parts : [];
  if (turns.length < 2) throw new Unusable("a conversation needs a message of the user and one of the assistant");
  const conversation = newConversation(models, textOf(system));
  turns.forEach(({ role, parts }, index) => {
    const expected = ["user", "assistant"][index % 2];
    if (role !== expected) throw new Unusable(`role out of order: a turn of the ${role}, expected the ${expected}`);
    if (!isSaid({ parts })) throw new Unusable(`an empty turn of the ${role}`);
    const answer = { ...newAnswer(null), parts, finish: "stop" };
    if (role === "user") conversation.exchanges.push({ asked: textOf(parts), answers: [] });
    else conversation.exchanges[conversation.exchanges.length - 1].answers[0] = answer;
  });
  return conversation;
}

/** What a message says and does, in order: ["user", "Hi"], ["call", "2*3"], ["output", "6"] …
 * @param {any} message
 * @returns {Step[]}
 */
function steps(message) {
  const { role, content, tool_calls: calls } = message ?? {};
  if (!ROLES.includes(role)) {
    throw new Unusable(`unknown role ${JSON.stringify(role) ?? "(none)"}: expected one of ${ROLES.join(", ")}`);
  }
  if (calls && !Array.isArray(calls)) throw new Unusable("tool_calls is no list");
  if (calls?.length && role !== "assistant") throw new Unusable(`tool_calls of the ${role}`);
  const text = content === null && calls?.length ? "" : said(content);
  if (role === "tool") return [["output", text]];
  /** @type {Step[]} */
  const words = text || !calls?.length ? [[role, text]] : [];
  /** @type {Step[]} */
  const called = (calls ?? []).map((/** @type {unknown} */ call) => ["call", expressionOf(call)]);
  return [...words, ...called];
}

/** @param {any} content @returns {string} */
function said(content) {
  const texts = Array.isArray(content) ? content.map((part) => part?.type === "text" && part.text) : [content];
  if (!texts.every((text) => typeof text === "string")) throw new Unusable("the content of a message is no text");
  if (!texts.every((text) => text.isWellFormed())) throw new Unusable("a text holds half of a surrogate pair");
  return texts.join("");
}

/** @param {any} call @returns {string} */
function expressionOf(call) {
  const { name, arguments: given = "{}" } = call?.function ?? {};
  if (typeof name !== "string") throw new Unusable("a call of a function without a name");
  const values = typeof given === "string" ? JSON.parse(given) : given;
  if (name === "calculator" && typeof values?.expression === "string") return said(values.expression);
  return JSON.stringify({ name, arguments: values });
}

/** Turns, in which calls, their outputs and the text after them stand inside one of the assistant.
 * @param {Step[]} steps
 */
function joined(steps) {
  const turns = /** @type {Turn[]} */ ([]);
  let within = false; // after a call or an output the assistant's turn goes on
  for (const [kind, text] of steps) {
    const isTool = kind === "call" || kind === "output";
    const role = isTool ? "assistant" : kind;
    if (turns.at(-1)?.role !== role || !(within || kind === "call")) turns.push({ role, parts: [] });
    const { parts } = turns[turns.length - 1];
    within = isTool;
    if (kind === "output") parts.splice(openCall(parts) + 1, 0, { kind, text });
    else if (kind === "call") parts.push({ kind, text });
    else addParts(parts, [{ kind: "text", text }]);
  }
  return turns;
}

/** The first call that has no output.
 * @param {Part[]} parts
 */
function openCall(parts) {
  const index = parts.findIndex(({ kind }, at) => kind === "call" && parts[at + 1]?.kind !== "output");
  if (index < 0) throw new Unusable("a tool's output without a call before it");
  return index;
}
