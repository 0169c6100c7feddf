// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { toMarkdown } from "../../../../stages/chatmill/app/server/static/chat/chat_markdown.js";
import {
  addParts, hasText, messagesFor, newAnswer, newConversation, textOf, titleOf,
} from "../../../../stages/chatmill/app/server/static/chat/conversation.js";
import {
  FileError, readLines, toLine, toLines,
} from "../../../../stages/chatmill/app/server/static/chat/training_lines.js";

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
    [
      ["text", "I ask: "],
      ["call", "2*3"],
      ["output", "6"],
      ["text", "6."],
    ],
  );
  assert.equal(conversation.system, "Be kind.");
  assert.equal(toLines([conversation]), LINE);
});

test("a file may begin with a byte order mark and have empty lines", () => {
  assert.equal(readLines(`\ufeff\n${LINE}\n\n${LINE}`, "a.jsonl", []).length, 2);
});

test("what is wrong with a line is told with its place", () => {
  const wrong = '{"messages": [{"role": "robot"}]}';
  assert.throws(() => readLines(`${LINE}\n${wrong}`, "a.jsonl", []), {
    constructor: FileError,
    message: /^a\.jsonl:3: unknown role "robot"/,
  });
  assert.throws(() => readLines("\n", "a.jsonl", []), { message: "a.jsonl: there is no conversation in the file" });
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
  assert.equal(toLine(held(["one", " "]), 0), "");
});

test("texts that adjoin become one, and calls stay apart", () => {
  const parts = text("a");
  addParts(parts, [...text("b"), { kind: "call", text: "c" }, { kind: "call", text: "d" }, ...text(""), ...text("e")]);
  assert.deepEqual(
    parts.map((part) => part.text),
    ["ab", "c", "d", "e"],
  );
  assert.equal(textOf(parts), "abe");
});

test("white space alone says nothing", () => {
  assert.equal(hasText({ parts: text(" \n") }), false);
  assert.equal(hasText({ parts: text(" a") }), true);
  assert.equal(hasText(undefined), false);
});

test("a title is the first question on one line, cut between characters", () => {
  assert.equal(titleOf(held(["  Hello \n there "])), "Hello there");
  assert.equal(titleOf(held(["🙂".repeat(61)])), "🙂".repeat(60));
  assert.equal(titleOf(held()), "New chat");
});

test("ids are 24 hexadecimal digits and never the same", () => {
  const ids = Array.from({ length: 100 }, () => newConversation([]).id);
  assert.equal(new Set(ids).size, 100);
  assert.ok(ids.every((id) => /^[0-9a-f]{24}$/.test(id)));
});

test("a chat is Markdown with a heading for each turn", () => {
  const [chat] = readLines(LINE, "f", ["A"]);
  chat.exchanges.push({ asked: " And now? ", answers: [] });
  const turns = ["# 2*3?", "> Be kind.", "## You", "2*3?", "## Answer", "I ask: `2*3` = `6` 6.", "## You", "And now?"];
  assert.equal(toMarkdown([chat]), `${turns.join("\n\n")}\n`);
});

test("a line that is too long for a chat is refused with its place", () => {
  const long = LINE + " ".repeat(2_000_000) + LINE;
  assert.throws(() => readLines(long, "f.jsonl", []), { message: /^f\.jsonl:2: over 2 MB/ });
});
