// @ts-check
/** Conversations as the page stores them, and reading and writing them as lines of the training format.
 *
 *     {id, models: ["A", "B"], system: "", exchanges: [{asked: "2*3?", answers: [answer, answer]}]}
 *
 * `asked` is the user's message, and each model has an answer of its own to it. An answer is {model, parts, …}, and its
 * parts are texts, calls of a tool and their outputs: [{kind: "call", text: "2*3"}, {kind: "output", text: "6"},
 * {kind: "text", text: "It is 6."}].
 *
 * The lines have the format `messages` of `prepare`, so that exported conversations can be trained on.
 */

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */
/** @typedef {{ model: string | null, parts: Part[], finish: string | null, problem: string | null,
 *   timings: Timings | null, promptIds: number[], ids: number[] }} Answer */
/** @typedef {{ asked: string, answers: Answer[], versions?: Answer[][] }} Exchange the user's message, and an answer of
 *   each model; `versions` are all answers of each model that was asked again, the shown one included */
/** @typedef {{ id: string, revision: number, updated: number, models: string[], system: string,
 *   exchanges: Exchange[], name?: string }} Conversation `revision` counts how often it was saved; `name` is given */
/** @typedef {{ role: string, content: string, tool_calls?: object[] }} Message an entry of a line or a request */
/** @typedef {["system" | "user" | "assistant" | Part["kind"], string]} Step a text, call or output of a message */
/** @typedef {{ role: string, parts: Part[] }} Turn */

const ROLES = ["system", "user", "assistant", "tool"];
const TITLE_LENGTH = 60;

/** An error in a file; the message says where. */
export class FileError extends Error {}

/** An error in one line of a file. */
class InvalidEntryError extends Error {}

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

/** A conversation with one of its models as a line, which `readLines` reads; "" if nothing was answered.
 * @param {Conversation} conversation
 * @param {number} column
 */
export function toLine(conversation, column) {
  const answered = conversation.exchanges.filter(({ answers }) => hasText(answers[column]));
  if (!answered.length) return "";
  const messages = answered.flatMap((exchange) => messagesOfExchange(exchange, column));
  return `${JSON.stringify({ messages: [...systemMessages(conversation), ...messages] })}\n`;
}

/** Conversations as a file: one line for each, or two for one with two models.
 * @param {Conversation[]} conversations
 */
export function toLines(conversations) {
  return conversations.map((one) => toLine(one, 0) + (one.models.length > 1 ? toLine(one, 1) : "")).join("");
}

/** The conversations that are not among others, and among those before them, with all of their messages.
 * @param {Conversation[]} conversations
 * @param {Conversation[]} others
 */
export function withoutDoubles(conversations, others) {
  const known = new Set(others.flatMap((one) => [toLine(one, 0), toLine(one, 1)]));
  return conversations.filter((one) => {
    const line = toLine(one, 0);
    const isNew = !line || !known.has(line);
    known.add(line);
    return isNew;
  });
}

/** A conversation with its first model as Markdown: a heading for each turn; calls of the calculator are code.
 * @param {Conversation} conversation
 */
export function toMarkdown(conversation) {
  const turns = conversation.exchanges.flatMap(({ asked, answers }) => [
    `## You\n\n${asked.trim()}`,
    ...(hasText(answers[0]) ? [`## ${answers[0].model ?? "Answer"}\n\n${markdownOf(answers[0].parts)}`] : []),
  ]);
  const system = conversation.system.trim();
  const prompt = system ? [`> ${system.replaceAll("\n", "\n> ")}`] : [];
  return [`# ${titleOf(conversation)}`, ...prompt, ...turns].join("\n\n") + "\n";
}

/** @param {Part[]} parts */
function markdownOf(parts) {
  return parts
    .map(({ kind, text }) => (kind === "text" ? text : `\`${text}\` ${kind === "call" ? "= " : ""}`))
    .join("")
    .trim();
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
      conversations.push(toConversation(JSON.parse(line), models));
    } catch (error) {
      if (!(error instanceof InvalidEntryError || error instanceof SyntaxError)) throw error;
      throw new FileError(`${name}:${index + 1}: ${error.message}`);
    }
  }
  if (!conversations.length) throw new FileError(`${name}: there is no conversation in the file`);
  return conversations;
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

/** @param {any} row the JSON of a line @param {string[]} models @returns {Conversation} */
function toConversation(row, models) {
  if (!Array.isArray(row?.messages)) throw new InvalidEntryError('expected an object with a list of "messages"');
  const turns = toTurns(row.messages.flatMap(steps));
  const system = turns[0]?.role === "system" ? turns.splice(0, 1)[0].parts : [];
  if (turns.length < 2) throw new InvalidEntryError("expected a message of the user and one of the assistant");
  const conversation = newConversation(models, textOf(system));
  turns.forEach(({ role, parts }, index) => {
    const expected = ["user", "assistant"][index % 2];
    if (role !== expected) throw new InvalidEntryError(`roles out of order: expected "${expected}", got "${role}"`);
    if (!hasText({ parts })) throw new InvalidEntryError(`a message of the ${role} is empty`);
    const answer = { ...newAnswer(null), parts, finish: "stop" };
    if (role === "user") conversation.exchanges.push({ asked: textOf(parts), answers: [] });
    else conversation.exchanges[conversation.exchanges.length - 1].answers[0] = answer;
  });
  return conversation;
}

/** The steps of a message, in order: ["user", "Hi"], ["call", "2*3"], ["output", "6"] …
 * @param {any} message
 * @returns {Step[]}
 */
function steps(message) {
  const { role, content, tool_calls: calls } = message ?? {};
  if (!ROLES.includes(role)) {
    const name = JSON.stringify(role) ?? "(none)";
    throw new InvalidEntryError(`unknown role ${name}: expected one of ${ROLES.join(", ")}`);
  }
  if (calls && !Array.isArray(calls)) throw new InvalidEntryError("tool_calls: expected a list");
  if (calls?.length && role !== "assistant") throw new InvalidEntryError(`tool_calls of the ${role}: expected none`);
  const text = content === null && calls?.length ? "" : contentText(content);
  if (role === "tool") return [["output", text]];
  /** @type {Step[]} */
  const words = text || !calls?.length ? [[role, text]] : [];
  /** @type {Step[]} */
  const called = (calls ?? []).map((/** @type {unknown} */ call) => ["call", expressionOf(call)]);
  return [...words, ...called];
}

/** @param {any} content @returns {string} */
function contentText(content) {
  const texts = Array.isArray(content) ? content.map((part) => part?.type === "text" && part.text) : [content];
  if (!texts.every((text) => typeof text === "string")) throw new InvalidEntryError("content: expected a text");
  if (!texts.every((text) => text.isWellFormed())) throw new InvalidEntryError("content: half of a surrogate pair");
  return texts.join("");
}

/** @param {any} call @returns {string} */
function expressionOf(call) {
  const { name, arguments: given = "{}" } = call?.function ?? {};
  if (typeof name !== "string") throw new InvalidEntryError("tool_calls: a function without a name");
  const values = typeof given === "string" ? JSON.parse(given) : given;
  if (name === "calculator" && typeof values?.expression === "string") return contentText(values.expression);
  return JSON.stringify({ name, arguments: values });
}

/** The turns of steps; calls, their outputs and the text after them belong to one turn of the assistant.
 * @param {Step[]} steps
 */
function toTurns(steps) {
  const turns = /** @type {Turn[]} */ ([]);
  let within = false; // after a call or an output, when the assistant's turn continues
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

/** The index of the first call without an output.
 * @param {Part[]} parts
 */
function openCall(parts) {
  const index = parts.findIndex(({ kind }, at) => kind === "call" && parts[at + 1]?.kind !== "output");
  if (index < 0) throw new InvalidEntryError("a tool's output needs a call before it");
  return index;
}
