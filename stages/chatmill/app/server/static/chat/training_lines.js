// @ts-check
/** Conversations as lines of the training format `messages`, which `prepare` and the terminal's /load read, too. */

import { addParts, answeredMessages, hasText, newAnswer, newConversation, textOf } from "./conversation.js";

/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {["system" | "user" | "assistant" | Part["kind"], string]} Step a text, call or output of a message */
/** @typedef {{ role: string, parts: Part[] }} Turn */

const MAX_LENGTH = 2_000_000; // characters of a chat: a request for its next answer has at most 2 MB
const ROLES = ["system", "user", "assistant", "tool"];

/** An error in a file; the message says where. */
export class FileError extends Error {}

/** An error in one line of a file. */
class InvalidEntryError extends Error {}

/** A conversation with one of its models as a line, which `readLines` reads; "" if nothing was answered.
 * @param {Conversation} conversation
 * @param {number} column
 */
export function toLine(conversation, column) {
  const messages = answeredMessages(conversation, column);
  return messages.length ? `${JSON.stringify({ messages })}\n` : "";
}

/** Conversations as a file: one line for each, or two for one with two models.
 * @param {Conversation[]} conversations
 */
export function toLines(conversations) {
  return conversations.map((one) => toLine(one, 0) + (one.models.length > 1 ? toLine(one, 1) : "")).join("");
}

/** The conversations of a file. Throws FileError with the place of a line that is not a conversation.
 * @param {string} text
 * @param {string} name
 * @param {string[]} models
 */
export function readLines(text, name, models) {
  const conversations = [];
  const lines = text.replace(/^\ufeff/, "").split("\n");
  for (const [index, line] of lines.entries()) {
    if (!line.trim()) continue;
    try {
      if (line.length > MAX_LENGTH) throw new InvalidEntryError(`over ${MAX_LENGTH / 1e6} MB: too long for a chat`);
      conversations.push(toConversation(JSON.parse(line), models));
    } catch (error) {
      if (!(error instanceof InvalidEntryError || error instanceof SyntaxError)) throw error;
      throw new FileError(`${name}:${index + 1}: ${error.message}`);
    }
  }
  if (!conversations.length) throw new FileError(`${name}: there is no conversation in the file`);
  return conversations;
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
