// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { problemSentence, warningsOf } from "../../../../stages/chatmill/app/server/static/chat/exchange.js";
import { describeModel, nameOf } from "../../../../stages/chatmill/app/server/static/chat/models.js";
import {
  classOf, markToolOutput, percent, visible,
} from "../../../../stages/chatmill/app/server/static/chat/tokens.js";
import { ApiError } from "../../../../stages/chatmill/app/server/static/shared/api.js";
import { pluralize, sentence } from "../../../../stages/chatmill/app/server/static/shared/dom.js";

const TIMINGS = { tokens_per_second: 1, first_token_ms: 9, prompt_tokens: 9, completion_tokens: 2, context: 20 };

/** @param {string} text */
function token(text) {
  return { id: 1, bytes: [...new TextEncoder().encode(text)], control: null, logprob: -1 };
}

/** @param {string} control */
function controlToken(control) {
  return { id: 1, bytes: [], control, logprob: -1 };
}

test("sentences begin with a capital and end with one mark, and one is one", () => {
  assert.deepEqual(["no model", "Why?", "é.", ""].map(sentence), ["No model.", "Why?", "É.", "."]);
  const counts = [0, 1, 1234].map((number) => pluralize(number, "token"));
  assert.deepEqual(counts, ["0 tokens", "1 token", "1,234 tokens"]);
});

test("what was left out of the prompt is told, and how an answer ended", () => {
  const dropped = { ...TIMINGS, dropped_messages: 2, lost: "~" };
  assert.deepEqual(warningsOf("stopped", dropped), [
    "Stopped.",
    "The context was too short: the oldest 2 messages left out.",
    "The model's tokenizer has no tokens for ~: your message was read without them.",
  ]);
  assert.deepEqual([...warningsOf("stop", TIMINGS), ...warningsOf("toString", null), ...warningsOf(null, null)], []);
});

test("a busy server tells how long to wait, and others do not", () => {
  const busy = problemSentence(new ApiError("the server is busy", 503, 1));
  assert.equal(busy, "The server is busy. Try again in 1 second.");
  assert.equal(problemSentence(new ApiError("no memory", 500)), "No memory.");
});

test("of a model that is not loaded little is known", () => {
  const facts = describeModel({ id: "a", loaded: false });
  assert.deepEqual(facts, [["Path or run", "a"], ["Loaded", "with its first answer"]]);
  assert.deepEqual(describeModel({ id: "a", loaded: true, engine: "onnx", size: 1_550_000, tools: [] }), [
    ["Path or run", "a"],
    ["Runs on", "onnx"],
    ["Size", "1.6 MB"],
    ["Tools", "none"],
  ]);
  assert.deepEqual(describeModel(undefined), []);
});

test("a model has the last name of its path, or that of its run, or is the project's", () => {
  const names = ["data/export/onnx", "data/model", "/tmp/models/qwen/", "C:\\models\\qwen", "wise-ox", "a/b.gguf", "/"];
  const expected = ["this project's model", "this project's model in PyTorch", "qwen", "qwen", "wise-ox", "b.gguf", ""];
  assert.deepEqual(names.map(nameOf), expected);
});

test("white space, control characters, accents alone and parts of a character are visible", () => {
  const shown = [" a\n", "\t\r", "\u0000", "\ufeff", "\u0301", "é"].map((text) => visible(token(text)));
  assert.deepEqual(shown, ["·a↵", "⇥␍", "⟨U+0000⟩", "⟨U+FEFF⟩", "◌\u0301", "é"]);
  assert.equal(visible({ bytes: [0xe2, 0x82], control: null }), "⟨e2 82⟩");
  assert.equal(visible(controlToken("<|bos|>")), "<|bos|>");
});

test("probabilities have a decimal, and small ones two digits", () => {
  const shares = [1, 0.5, 0.0012345, 0.00012345, 1e-9].map((share) => percent(Math.log(share)));
  assert.deepEqual(shares, ["100.0 %", "50.0 %", "0.1 %", "0.012 %", "1e-7 %"]);
});

test("each step of probability begins at its least; the first token and those of a tool have none", () => {
  const classes = [1, 0.9001, 0.89, 0.5001, 0.2001, 0.0501, 0.01].map((share) =>
    classOf({ logprob: Math.log(share), control: null, given: false }),
  );
  assert.deepEqual(classes, ["p0", "p0", "p1", "p1", "p2", "p3", "p4"]);
  assert.equal(classOf({ logprob: null, control: "<|bos|>", given: false }), "unknown control-token");
  assert.equal(classOf({ logprob: -1, control: null, given: true }), "given");
});

test("a tool has written what stands from the start of its output to the end", () => {
  const tokens = [token("a"), controlToken("<|output_start|>"), token("6"), controlToken("<|output_end|>"), token("b")];
  assert.deepEqual(markToolOutput(tokens).map(({ given }) => given), [false, true, true, true, false]);
});
