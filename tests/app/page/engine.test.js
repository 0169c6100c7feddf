// @ts-check
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

import { calculate } from "../../../stages/chatmill/app/page/static/calculator.js";
import { openKernel } from "../../../stages/chatmill/app/page/static/model.js";
import { DEFAULTS, Sampler } from "../../../stages/chatmill/app/page/static/sampler.js";
import { escape, unescape } from "../../../stages/chatmill/app/page/static/template.js";
import { Tokenizer } from "../../../stages/chatmill/app/page/static/tokenizer.js";

const STATIC = new URL("../../../stages/chatmill/app/page/static/", import.meta.url);
const wasm = new Uint8Array(readFileSync(new URL("kernel.wasm", STATIC)));
const [ROWS, COLUMNS] = [7, 48];

test("a product is the scaled sum of the products of its numbers", () => {
  const start = 4 * COLUMNS;
  const matrix = start + 8 * ROWS; // after the input, the output and the scales
  const { buffer, multiply } = openKernel(matrix + ROWS * COLUMNS, wasm);
  const floats = new Float32Array(buffer);
  const bytes = new Int8Array(buffer);
  for (let i = 0; i < COLUMNS; i += 1) floats[i] = Math.sin(i * i);
  for (let i = 0; i < ROWS; i += 1) floats[COLUMNS + ROWS + i] = 1 / (3 + i);
  for (let i = 0; i < ROWS * COLUMNS; i += 1) bytes[matrix + i] = (i * i * 31) % 255;
  multiply(matrix, start + 4 * ROWS, 0, start, ROWS, COLUMNS);
  for (let row = 0; row < ROWS; row += 1) {
    let sum = 0;
    for (let i = 0; i < COLUMNS; i += 1) sum += bytes[matrix + row * COLUMNS + i] * floats[i];
    assert.ok(Math.abs(floats[COLUMNS + row] - sum / (3 + row)) < 1e-3, `row ${row}`);
  }
});

test("kernel.wasm is what kernel.wat says", async (context) => {
  const { NODE_PATH: packages } = process.env;
  if (!packages) return context.skip("NODE_PATH names no wabt");
  const wabt = await createRequire(`${packages}/`)("wabt")();
  const module = wabt.parseWat("kernel.wat", readFileSync(new URL("kernel.wat", STATIC), "utf8"), { simd: true });
  assert.deepEqual(new Uint8Array(module.toBinary({}).buffer), wasm);
});

test("the calculator rounds exact fractions, half to even", () => {
  const cases = {
    "2*(3+4)": "14",
    "1/3": "0.333333",
    "0.0000005": "0",
    "0.0000015": "0.000002",
    "-2/3": "-0.666667",
    "-0.0000001": "0",
    "007 + .5": "7.5",
    "1/0": "error: division by zero",
    two: "error: not arithmetic",
    "1 2": "error: not arithmetic",
    "\u00a01": "1",
    "": "error: not arithmetic",
  };
  for (const [text, value] of Object.entries(cases)) assert.equal(calculate(text), value, text);
  assert.equal(calculate("1".repeat(201)), "error: longer than 200 characters");
  assert.equal(calculate(`${"(".repeat(21)}1${")".repeat(21)}`), "error: not arithmetic");
});

test("an escaped text has no control token, and is restored", () => {
  for (const text of ["<|im_end|>", "<\\|", "<<||", "a<\\\\|b", "<"]) {
    assert.ok(!escape(text).includes("<|"), text);
    assert.equal(unescape(escape(text)), text);
  }
});

/** Choices among four tokens, of which the last is not allowed. @param {object} sampling @param {number} count */
function choices(sampling, count) {
  const sampler = new Sampler(Uint8Array.of(1, 1, 1, 0), { ...DEFAULTS, seed: 7, ...sampling });
  return Array.from({ length: count }, () => sampler.sample(Float32Array.of(1, 3, 2, 9), []));
}

test("a seed gives the same choices again, by their probabilities", () => {
  assert.deepEqual(choices({}, 3), [1, 1, 1]); // without a temperature, the likeliest
  const drawn = choices({ temperature: 1 }, 3000);
  assert.deepEqual(drawn, choices({ temperature: 1 }, 3000));
  const shares = [0, 1, 2, 3].map((id) => drawn.filter((one) => one === id).length / 3000);
  const expected = [0.09, 0.665, 0.245, 0]; // of exp(1), exp(3), exp(2)
  expected.forEach((share, id) => assert.ok(Math.abs(shares[id] - share) < 0.03, `${shares}`));
});

test("top_k, top_p and min_p leave the likeliest tokens", () => {
  assert.deepEqual([...new Set(choices({ temperature: 1, top_k: 2 }, 500))].sort(), [1, 2]);
  assert.deepEqual([...new Set(choices({ temperature: 1, top_p: 0.6 }, 500))], [1]);
  assert.deepEqual([...new Set(choices({ temperature: 1, min_p: 0.3 }, 500))].sort(), [1, 2]);
});

test("characters that no token says are told, each once", () => {
  const lost = (/** @type {string} */ tokens, /** @type {number[]} */ ...others) => {
    const kinds = [...[...tokens].map(() => 0), ...others];
    const lists = { scores: new Float64Array(kinds.length), merges: new Uint32Array(), added: [], special: {} };
    const flags = { marked: false, plain: false, exact: true, pattern: null, splits: [] };
    const all = [...tokens, ...others.map(() => "?")];
    return new Tokenizer({ algorithm: "merge", tokens: all, kinds, ...lists, ...flags }).lost("abé~a~");
  };
  assert.equal(lost("ab"), "é~");
  assert.equal(lost("ab~\xc3\xa9"), "");
  assert.equal(lost("ab", 5), ""); // one stands for what is unknown
});
