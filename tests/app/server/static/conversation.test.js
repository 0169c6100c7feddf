// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  addParts, FileError, hasText, messagesFor, newAnswer, newConversation, readLines, textOf, titleOf, toLines,
} from "../../../../stages/chatmill/app/server/static/chat/conversation.js";

/** @typedef {import("../../../../stages/chatmill/app/server/static/shared/api.js").Part} Part */

const LINE =
  '{"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"2*3?"},' +
  '{"role":"assistant","content":"I ask: "},{"role":"assistant","content":"","tool_calls":[{"type":"function",' +
  '"function":{"name":"calculator","arguments":"{\\"expression\\":\\"2*3\\"}"}}]},{"role":"tool","content":"6"},' +
  '{"role":"assistant","content":"6."}]}\n';

/** @param {string} words @returns {Part[]} */
function text(words) {
  return [{ kind: "text", text: words }];
}

/** A conversation with what each model has answered to each question. @param {...[string, ...string[]]} exchanges */
function held(...exchanges) {
  const conversation = newConversation(["A", "B"]);
  conversation.exchanges = exchanges.map(([asked, ...answers]) => ({
    asked,
    answers: answers.map((words) => ({ ...newAnswer("A"), parts: text(words) })),
  }));
  return conversation;
}

test("a line with a call of a tool comes back as it was", () => {
  const [conversation] = readLines(LINE, "a.jsonl", ["A"]);
  assert.deepEqual(
    conversation.exchanges[0].answers[0].parts.map(({ kind, text: words }) => [kind, words]),
    [["text", "I ask: "], ["call", "2*3"], ["output", "6"], ["text", "6."]],
  );
  assert.equal(conversation.system, "Be kind.");
  assert.equal(toLines([conversation]), LINE);
  assert.equal(readLines(`\ufeff\n${LINE}\n\n${LINE}`, "a.jsonl", []).length, 2);
});

test("what is wrong with a line is told with its place", () => {
  const user = { role: "user", content: "Hi" };
  const assistant = { role: "assistant", content: "Ho" };
  /** @type {[object, RegExp][]} */
  const cases = [
    [{}, /expected an object with a list of "messages"/],
    [{ messages: [{ role: "robot" }] }, /unknown role "robot"/],
    [{ messages: [user] }, /a message has no answer/],
    [{ messages: [user, user, assistant] }, /a message has no answer/],
    [{ messages: [assistant, user] }, /a message of the assistant is out of place/],
    [{ messages: [user, { role: "tool", content: "6" }] }, /a tool's output needs a call/],
    [{ messages: [user, { role: "assistant", content: 3 }] }, /content: expected a text/],
  ];
  for (const [row, message] of cases) {
    const expected = { constructor: FileError, message: new RegExp(`^a\\.jsonl:3: ${message.source}`) };
    assert.throws(() => readLines(`${LINE}\n${JSON.stringify(row)}`, "a.jsonl", []), expected);
  }
  assert.throws(() => readLines("\n", "a.jsonl", []), { message: "a.jsonl: there is no conversation in the file" });
  const long = LINE + " ".repeat(2_000_000) + LINE;
  assert.throws(() => readLines(long, "a.jsonl", []), { message: /^a\.jsonl:2: over 2 MB/ });
});

test("a model is sent what it has said itself, and questions that it has answered", () => {
  const conversation = held(["one", "1a", "1b"], ["two", "", "2b"], ["three", "3a", "3b"]);
  const contents = (/** @type {number} */ column) => messagesFor(conversation, column, 2).map(({ content }) => content);
  assert.deepEqual(contents(0), ["one", "1a", "three"]);
  assert.deepEqual(contents(1), ["one", "1b", "two", "2b", "three"]);
});

test("a system prompt comes first, and what is to be continued last", () => {
  const conversation = { ...held(["one", "1a"]), system: "Be kind." };
  assert.deepEqual(messagesFor(conversation, 0, 0, text("begun")), [
    { role: "system", content: "Be kind." },
    { role: "user", content: "one" },
    { role: "assistant", content: "begun" },
  ]);
  assert.equal(messagesFor({ ...conversation, system: " \n" }, 0, 0)[0].role, "user");
});

test("a conversation with two models is two lines, and one without answers none", () => {
  assert.equal(toLines([held(["one", "1a", "1b"])]).split("\n").length, 3);
  assert.equal(toLines([held(["one", " ", ""])]), "");
});

test("texts that adjoin become one, and calls stay apart", () => {
  const parts = text("a");
  addParts(parts, [...text("b"), { kind: "call", text: "c" }, { kind: "call", text: "d" }, ...text(""), ...text("e")]);
  assert.deepEqual(parts.map((part) => part.text), ["ab", "c", "d", "e"]);
  assert.equal(textOf(parts), "abe");
  assert.equal(hasText({ parts: text(" \n") }), false);
});

test("a title is the first question on one line, cut between characters", () => {
  assert.equal(titleOf(held(["  Hello \n there "])), "Hello there");
  assert.equal(titleOf(held(["🙂".repeat(61)])), "🙂".repeat(60));
  assert.equal(titleOf(held()), "New chat");
});
