// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  isExported, readFile, toJson, toMarkdown, withoutDoubles,
} from "../../../../stages/chatmill/app/server/static/chat/chat_files.js";
import {
  addParts, hasText, keepVersion, messagesFor, newAnswer, newConversation, showBranch, startBranch, textOf, titleOf,
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

test("what is here already is not imported again, and what is twice in a file is imported once", () => {
  const here = [held(["Hi", "Hello", "Yes?"]), held(["Bye"])];
  const read = readLines(toLines(here) + toLine(held(["New", "Indeed"]), 0).repeat(2), "f", ["A"]);
  assert.equal(read.length, 4);
  assert.deepEqual(withoutDoubles(read, here).map(titleOf), ["New"]);
  assert.deepEqual(withoutDoubles([held(["Unanswered"])], [held(["Other"])]).map(titleOf), ["Unanswered"]);
});

test("a chat is Markdown with a heading for each turn", () => {
  const [chat] = readLines(LINE, "f", ["A"]);
  chat.exchanges.push({ asked: " And now? ", answers: [] });
  const turns = ["# 2*3?", "> Be kind.", "## You", "2*3?", "## Answer", "I ask: `2*3` = `6` 6.", "## You", "And now?"];
  assert.equal(toMarkdown([chat]), `${turns.join("\n\n")}\n`);
});

test("an edited message and what followed it are a branch that is shown again as it was", () => {
  const { exchanges } = held(["one", "1"], ["two", "2"], ["three", "3"]);
  const before = structuredClone(exchanges);
  for (const asked of ["TWO", "II"]) exchanges.push({ asked, answers: [], branches: startBranch(exchanges, 1) });
  assert.deepEqual(shown(exchanges), ["one", "II"]);
  assert.equal(exchanges[1].branches?.indexOf(null), 2);
  showBranch(exchanges, 1, 0);
  assert.deepEqual(shown(exchanges), ["one", "two", "three"]);
  showBranch(exchanges, 1, 1);
  assert.deepEqual(shown(exchanges), ["one", "TWO"]);
  showBranch(exchanges, 1, 0);
  delete exchanges[1].branches;
  assert.deepEqual(exchanges, before);
});

test("a branch within a branch is left and found again", () => {
  const { exchanges } = held(["one", "1"], ["two", "2"]);
  exchanges.push({ asked: "TWO", answers: [], branches: startBranch(exchanges, 1) });
  exchanges.push({ asked: "ONE", answers: [], branches: startBranch(exchanges, 0) });
  showBranch(exchanges, 0, 0);
  assert.deepEqual(shown(exchanges), ["one", "TWO"]);
  showBranch(exchanges, 1, 0);
  assert.deepEqual(shown(exchanges), ["one", "two"]);
});

/** @param {import("../../../../stages/chatmill/app/server/static/chat/conversation.js").Exchange[]} exchanges */
function shown(exchanges) {
  return exchanges.map(({ asked }) => asked);
}

/** A chat with a name, a system prompt, an edited message and an answer that was requested three times. */
function full() {
  const chat = { ...held(["one", "1a", "1b"], ["two", "2a", "2b"]), updated: 12345, name: "Mine", system: "Be kind." };
  const [first] = chat.exchanges;
  for (const words of ["1c", "1d"]) {
    const before = first.answers[1];
    first.answers[1] = { ...newAnswer("B"), parts: text(words), ids: [1, 2] };
    keepVersion(first, 1, before);
  }
  chat.exchanges.push({ asked: "TWO", answers: [newAnswer("A")], branches: startBranch(chat.exchanges, 1) });
  return chat;
}

const FILE = { name: "f.json", lastModified: 777 };

test("JSON brings back models, dates, names, system prompts, versions and branches", () => {
  const chat = full();
  const [read] = readFile(toJson([chat]), FILE, ["C"]);
  assert.ok(isExported(toJson([chat])));
  assert.deepEqual(JSON.parse(JSON.stringify(read)), JSON.parse(JSON.stringify(chat)));
  assert.equal(read.exchanges[0].versions?.[1].indexOf(read.exchanges[0].answers[1]), 2);
  assert.deepEqual(withoutDoubles([read], [chat]), []);
  assert.deepEqual(withoutDoubles([read], [{ ...chat, exchanges: [], updated: 12344 }]), [read]);
});

test("lines have the date of their file, in their order", () => {
  const dates = readFile(LINE + LINE, FILE, ["C"]).map(({ updated, models }) => [updated, models]);
  assert.deepEqual(dates, [[777, ["C"]], [776, ["C"]]]);
});

test("files for which a page is too small are refused with the limit", () => {
  const long = { ...newConversation([]), system: "x".repeat(2_000_001) };
  const refused = /** @type {[string, RegExp][]} */ ([
    [LINE.repeat(10_001), /^f\.json: 10,001 chats: expected at most 10,000/],
    [toJson([long]), /^f\.json: chats\[0\]\.system: expected at most 2 MB/],
    [LINE + " ".repeat(2_000_000) + LINE, /^f\.json:2: over 2 MB/],
  ]);
  for (const [content, message] of refused) assert.throws(() => readFile(content, FILE, []), { message });
});

test("what is wrong with JSON is told with its place, and another version with both", () => {
  const json = toJson([full()]);
  const wrong = /** @type {[string, string, RegExp][]} */ ([
    ['"version": 1', '"version": 2', /^f\.json: version 2: this page reads version 1$/],
    ['"updated":12345', '"updated":"now"', /^f\.json: chats\[0\]\.updated: expected a number$/],
    ['"kind":"text"', '"kind":"html"', /\.parts\[0\]\.kind: expected one of text, call, output$/],
    ["null]", "[]]", /branches\[1\]: expected an exchange$/],
    ["]", "", /^f\.json: /],
  ]);
  for (const [before, after, message] of wrong) {
    assert.throws(() => readFile(json.replace(before, after), FILE, []), { constructor: FileError, message });
  }
});
