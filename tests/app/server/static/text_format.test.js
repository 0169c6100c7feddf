// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  statsOf,
  warningsOf,
  problemSentence,
  rounded,
} from "../../../../stages/chatmill/app/server/static/chat/answer_stats.js";
import {
  badgeOf,
  describeModel,
  formatBytes,
  learnModels,
  nameOf,
} from "../../../../stages/chatmill/app/server/static/chat/model_description.js";
import { requestValues, unescaped, withSetting } from "../../../../stages/chatmill/app/server/static/chat/sampling.js";
import { pluralize, sentence } from "../../../../stages/chatmill/app/server/static/shared/text_format.js";

const TIMINGS = {
  tokens_per_second: 1234.5, first_token_ms: 9.46, prompt_tokens: 1000, completion_tokens: 24, context: 16384,
};

test("sentences begin with a capital and end with one mark", () => {
  assert.deepEqual(["no model", "Why?", "é.", ""].map(sentence), ["No model.", "Why?", "É.", "."]);
});

test("one is one and all others are several", () => {
  assert.deepEqual(
    [0, 1, 2, 1234].map((number) => pluralize(number, "token")),
    ["0 tokens", "1 token", "2 tokens", "1,234 tokens"],
  );
});

test("small numbers have a decimal and a missing one is a dash", () => {
  assert.deepEqual([0.04, 0.46, 9.96, 10.4, 1234.5, 0, null].map(rounded), ["0", "0.5", "10", "10", "1,235", "–", "–"]);
});

test("the figures of an answer count its tokens and its share of the context", () => {
  assert.deepEqual(
    statsOf(TIMINGS, 24).map(({ value }) => value),
    ["1,235", "9.5", "24", "1,024 of 16,384"],
  );
  assert.deepEqual(statsOf(null, 24), []);
});

test("what was left out of the prompt is told, and how an answer ended", () => {
  const dropped = { ...TIMINGS, dropped_messages: 2 };
  assert.deepEqual(warningsOf("stopped", dropped), [
    "Stopped.",
    "The context was too short: the oldest 2 messages left out.",
  ]);
  assert.deepEqual([...warningsOf("stop", TIMINGS), ...warningsOf("toString", null), ...warningsOf(null, null)], []);
});

test("a busy server tells how long to wait, and others do not", () => {
  const error = { message: "the server is busy", status: 503, retryAfter: 1 };
  assert.equal(problemSentence(error), "The server is busy. Try again in 1 second.");
  assert.equal(problemSentence({ ...error, status: 500 }), "The server is busy.");
});

test("sizes have the unit that they reach", () => {
  assert.deepEqual([0, 999, 1000, 1_550_000, 999_999_999, 2e9].map(formatBytes), [
    "0 bytes",
    "999 bytes",
    "1 KB",
    "1.6 MB",
    "1,000 MB",
    "2 GB",
  ]);
});

test("of a model that is not loaded little is known", () => {
  assert.deepEqual(describeModel({ id: "a", loaded: false }), [
    ["Path or run", "a"],
    ["Loaded", "with its first answer"],
  ]);
  assert.deepEqual(describeModel({ id: "a", loaded: true, engine: "onnx", tools: [] }), [
    ["Path or run", "a"],
    ["Runs on", "onnx"],
    ["Tools", "none"],
  ]);
  assert.deepEqual(describeModel(undefined), []);
});

test("marks of a stop text are what they mean, once", () => {
  assert.equal(unescaped(String.raw`a\nb\tc\\nd\x`), "a\nb\tc\\nd\\x");
});

test("a request has the numbers and, where there are some, the stop texts", () => {
  assert.deepEqual(requestValues({ top_k: 3, stop: "\\n\n\n How" }), { top_k: 3, stop: ["\n", " How"] });
  assert.deepEqual(requestValues({ top_k: 3, stop: "\n" }), { top_k: 3 });
});

test("a setting that is empty or the default is no change", () => {
  const defaults = { top_k: 5 };
  const changed = withSetting({ seed: 1 }, "top_k", 0, defaults);
  assert.deepEqual(changed, { seed: 1, top_k: 0 });
  assert.deepEqual(withSetting(changed, "top_k", 5, defaults), { seed: 1 });
  assert.deepEqual(withSetting(changed, "seed", null, defaults), { top_k: 0 });
});

test("a model has the last name of its path, or that of its run, or is the project's", () => {
  const names = ["data/export/onnx", "data/model", "/tmp/models/qwen/", "C:\\models\\qwen", "wise-ox", "a/b.gguf", "/"];
  const expected = ["this project's model", "this project's model in PyTorch", "qwen", "qwen", "wise-ox", "b.gguf", ""];
  assert.deepEqual(names.map(nameOf), expected);
});

test("a model is called by the last name of its path", () => {
  learnModels(["a/x", "b/z"].map((id) => ({ id, loaded: true })));
  assert.deepEqual(["a/x", "b/z", "data/model"].map(nameOf), ["x", "z", "this project's model in PyTorch"]);
  assert.deepEqual(["a/x", "b/z"].map(badgeOf), [
    { className: "who badge hue0", "data-letter": "X" },
    { className: "who badge hue1", "data-letter": "Z" },
  ]);
  assert.deepEqual(badgeOf(null), { className: "who" });
});
