// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  classOf,
  hex,
  percent,
  visible,
  markToolOutput,
} from "../../../../stages/chatmill/app/server/static/chat/token_text.js";

/** @param {string} text */
function token(text) {
  return { id: 1, bytes: [...new TextEncoder().encode(text)], control: null, logprob: -1 };
}

/** @param {string} control */
function controlToken(control) {
  return { id: 1, bytes: [], control, logprob: -1 };
}

test("white space, control characters and accents alone are visible", () => {
  const texts = [" a\n", "\t\r", "\u0000", "\ufeff", "\u0301", "é"];
  assert.deepEqual(
    texts.map((text) => visible(token(text))),
    ["·a↵", "⇥␍", "⟨U+0000⟩", "⟨U+FEFF⟩", "◌\u0301", "é"],
  );
});

test("bytes that are a part of a character are hexadecimal", () => {
  assert.equal(visible({ bytes: [0xe2, 0x82], control: null }), "⟨e2 82⟩");
  assert.equal(hex([0, 10, 255]), "00 0a ff");
});

test("a control token is its name", () => {
  assert.equal(visible(controlToken("<|bos|>")), "<|bos|>");
});

test("probabilities have a decimal, and small ones two digits", () => {
  const shares = [1, 0.5, 0.0012345, 0.00012345, 1e-9];
  assert.deepEqual(
    shares.map((share) => percent(Math.log(share))),
    ["100.0 %", "50.0 %", "0.1 %", "0.012 %", "1e-7 %"],
  );
});

test("each step of probability begins at its least", () => {
  const classes = [1, 0.9001, 0.89, 0.5001, 0.2001, 0.0501, 0.01].map((share) =>
    classOf({ logprob: Math.log(share), control: null, given: false }),
  );
  assert.deepEqual(classes, ["p0", "p0", "p1", "p1", "p2", "p3", "p4"]);
});

test("the first token and those of a tool have no step", () => {
  assert.equal(classOf({ logprob: null, control: "<|bos|>", given: false }), "unknown control-token");
  assert.equal(classOf({ logprob: -1, control: null, given: true }), "given");
});

test("a tool has written what stands from the start of its output to the end", () => {
  const tokens = [token("a"), controlToken("<|output_start|>"), token("6"), controlToken("<|output_end|>"), token("b")];
  assert.deepEqual(
    markToolOutput(tokens).map(({ given }) => given),
    [false, true, true, true, false],
  );
});
