/** Conversations as the page keeps them, and the lines of the training format that they are written to and read from.
 *
 *     {id, models: ["A", "B"], system: "", exchanges: [{asked: "2*3?", answers: [answer, answer]}]}
 *
 * Each model has its own answers to what was asked. An answer is {model, parts, …}, and its parts are texts, calls of
 * a tool and their outputs: [{kind: "call", text: "2*3"}, {kind: "output", text: "6"}, {kind: "text", text: "It is
 * 6."}].
 */

const ROLES = ["system", "user", "assistant", "tool"];
const TITLE_LENGTH = 60;

/** What is wrong with a file, and where. */
export class Mistake extends Error {}

/** An entry that is no conversation; the message says why. */
class Unusable extends Error {}

/** A conversation in which nothing was said. `revision` counts how often it was kept. */
export function newConversation(models, system = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, revision: 0, updated: Date.now(), models, system, exchanges: [] };
}

/** An answer to which nothing has come yet. */
export function newAnswer(model) {
  return { model, parts: [], finish: null, problem: null, timings: null, promptIds: [], ids: [] };
}

/** What the list calls a conversation: the beginning of what was asked first. */
export function titleOf(conversation) {
  const words = (conversation.exchanges[0]?.asked ?? "").slice(0, 1000).trim().split(/\s+/).join(" ");
  return [...words].slice(0, TITLE_LENGTH).join("") || "New chat";
}

/** What is said, without calls and their outputs. */
export function textOf(parts) {
  return parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** Put new parts after others; texts that adjoin become one. */
export function addParts(parts, added) {
  for (const { kind, text } of added) {
    const last = parts.at(-1);
    if (kind === "text" && last?.kind === "text") last.text += text;
    else if (kind !== "text" || text) parts.push({ kind, text });
  }
}

/** Whether an answer says anything. */
export function isSaid(answer) {
  return Boolean(answer?.parts.some((part) => part.text.trim()));
}

/** The messages that ask a model for its answer to the exchange `last`; with what it has said of it, to go on. */
export function messagesFor(conversation, column, last, continued = []) {
  const earlier = conversation.exchanges.slice(0, last).filter(({ answers }) => isSaid(answers[column]));
  return [
    ...opening(conversation),
    ...earlier.flatMap(({ asked, answers }) => [userMessage(asked), ...entries(answers[column].parts)]),
    userMessage(conversation.exchanges[last].asked),
    ...entries(continued),
  ];
}

/** A conversation with one of its models as a line; "" where nothing was answered. `readLines` reads it. */
export function toLine(conversation, column) {
  const said = conversation.exchanges.filter(({ answers }) => isSaid(answers[column]));
  if (!said.length) return "";
  const turns = said.flatMap(({ asked, answers }) => [userMessage(asked), ...entries(answers[column].parts)]);
  return `${JSON.stringify({ messages: [...opening(conversation), ...turns] })}\n`;
}

/** Conversations as a file: one line for each, or two for one with two models. */
export function toLines(conversations) {
  return conversations.map((one) => toLine(one, 0) + (one.models.length > 1 ? toLine(one, 1) : "")).join("");
}

/** The conversations of a file. Raises Mistake with the place of a line that is none. */
export function readLines(text, name, models) {
  const conversations = [];
  for (const [index, line] of text.replace(/^\ufeff/, "").split("\n").entries()) {
    if (!line.trim()) continue;
    try {
      conversations.push(toConversation(JSON.parse(line), models));
    } catch (error) {
      if (!(error instanceof Unusable || error instanceof SyntaxError)) throw error;
      throw new Mistake(`${name}:${index + 1}: ${error.message}`);
    }
  }
  if (!conversations.length) throw new Mistake(`${name}: there is no conversation in it`);
  return conversations;
}

function opening({ system }) {
  return system.trim() ? [{ role: "system", content: system }] : [];
}

function userMessage(content) {
  return { role: "user", content };
}

function entries(parts) {
  return parts.map(({ kind, text }) => {
    if (kind === "text") return { role: "assistant", content: text };
    if (kind === "output") return { role: "tool", content: text };
    const call = { name: "calculator", arguments: JSON.stringify({ expression: text }) };
    return { role: "assistant", content: "", tool_calls: [{ type: "function", function: call }] };
  });
}

function toConversation(row, models) {
  if (!Array.isArray(row?.messages)) throw new Unusable('expected an object with a list of "messages"');
  const turns = joined(row.messages.flatMap(steps));
  const system = turns[0]?.role === "system" ? turns.shift().parts : [];
  if (turns.length < 2) throw new Unusable("a conversation needs a message of the user and one of the assistant");
  const conversation = newConversation(models, textOf(system));
  turns.forEach(({ role, parts }, index) => {
    const expected = ["user", "assistant"][index % 2];
    if (role !== expected) throw new Unusable(`role out of order: a turn of the ${role}, expected the ${expected}`);
    if (!isSaid({ parts })) throw new Unusable(`an empty turn of the ${role}`);
    if (role === "user") conversation.exchanges.push({ asked: textOf(parts), answers: [] });
    else conversation.exchanges.at(-1).answers[0] = { ...newAnswer(null), parts, finish: "stop" };
  });
  return conversation;
}

/** What a message says and does, in order: ["user", "Hi"], ["call", "2*3"], ["output", "6"] … */
function steps(message) {
  const { role, content, tool_calls: calls } = message ?? {};
  if (!ROLES.includes(role)) {
    throw new Unusable(`unknown role ${JSON.stringify(role) ?? "(none)"}: expected one of ${ROLES.join(", ")}`);
  }
  if (calls && !Array.isArray(calls)) throw new Unusable("tool_calls is no list");
  if (calls?.length && role !== "assistant") throw new Unusable(`tool_calls of the ${role}`);
  const text = content === null && calls?.length ? "" : said(content);
  if (role === "tool") return [["output", text]];
  const words = text || !calls?.length ? [[role, text]] : [];
  return [...words, ...(calls ?? []).map((call) => ["call", called(call)])];
}

function said(content) {
  const texts = Array.isArray(content) ? content.map((part) => part?.type === "text" && part.text) : [content];
  if (!texts.every((text) => typeof text === "string")) throw new Unusable("the content of a message is no text");
  if (!texts.every((text) => text.isWellFormed())) throw new Unusable("a text holds half of a surrogate pair");
  return texts.join("");
}

function called(call) {
  const { name, arguments: given = "{}" } = call?.function ?? {};
  if (typeof name !== "string") throw new Unusable("a call of a function without a name");
  const values = typeof given === "string" ? JSON.parse(given) : given;
  if (name === "calculator" && typeof values?.expression === "string") return said(values.expression);
  return JSON.stringify({ name, arguments: values });
}

/** Turns, in which calls, their outputs and the text after them stand inside one of the assistant. */
function joined(steps) {
  const turns = [];
  let within = false; // after a call or an output the assistant's turn goes on
  for (const [kind, text] of steps) {
    const isTool = kind === "call" || kind === "output";
    const role = isTool ? "assistant" : kind;
    if (turns.at(-1)?.role !== role || !(within || kind === "call")) turns.push({ role, parts: [] });
    const { parts } = turns.at(-1);
    within = isTool;
    if (kind === "output") parts.splice(openCall(parts) + 1, 0, { kind, text });
    else if (kind === "call") parts.push({ kind, text });
    else addParts(parts, [{ kind: "text", text }]);
  }
  return turns;
}

/** The first call that has no output. */
function openCall(parts) {
  const index = parts.findIndex(({ kind }, at) => kind === "call" && parts[at + 1]?.kind !== "output");
  if (index < 0) throw new Unusable("a tool's output without a call before it");
  return index;
}
