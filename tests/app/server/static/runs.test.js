// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { axis, formatTick, pointBefore } from "../../../../stages/chatmill/app/server/static/runs/chart.js";
import {
  chatAddress, findAgain, lineOf, missingCurveNotes, selectionHint, summary,
} from "../../../../stages/chatmill/app/server/static/runs/selection.js";
import {
  bestOf, COLUMNS, differences, shown, sorted,
} from "../../../../stages/chatmill/app/server/static/runs/table.js";
import { compareCommand, sidesOf, untickedSeeds } from "../../../../stages/chatmill/app/server/static/runs/verdict.js";

/** @typedef {import("../../../../stages/chatmill/app/server/static/runs/selection.js").Run} Run */

/** @param {string} name @param {Record<string, any>} figures @returns {Run} */
function run(name, figures = {}) {
  const facts = { name, label: name, kind: "experiment", rev: "abc", model: "m", report: false };
  const settings = { batch_size: 8, tokenizer: "bpe", depth: 2, seed: "1", group: null, differs: {}, other_seeds: [] };
  return { ...facts, problem: null, ...settings, ...figures };
}

/** @param {string} key */
function column(key) {
  const found = COLUMNS.find((one) => one.key === key);
  assert.ok(found);
  return found;
}

test("ticks lie at 1, 2 or 5 times a power of ten, around all values", () => {
  assert.deepEqual(axis("x", [0, 40]).marks, [0, 10, 20, 30, 40]);
  assert.deepEqual(axis("x", [1.234, 1.301]).marks, [1.22, 1.24, 1.26, 1.28, 1.3, 1.32]);
  assert.deepEqual(axis("x", [-3, 4]).marks, [-4, -2, 0, 2, 4]);
  for (const value of [0, 5, -5, 1e-9, 12345678]) {
    const { low, high } = axis("x", [value]);
    assert.ok(low <= value && value <= high && low < high, String(value));
  }
});

test("an axis has few ticks, whatever the size of its values", () => {
  for (let exponent = -12; exponent <= 12; exponent += 1) {
    for (const [from, to] of [[1, 9.99], [0, 1], [-7, 3]]) {
      const { low, high, marks } = axis("x", [from * 10 ** exponent, to * 10 ** exponent]);
      assert.ok(low <= from * 10 ** exponent * (1 + 1e-9) + 1e-20 && high >= to * 10 ** exponent * (1 - 1e-9));
      assert.ok(marks.length >= 2 && marks.length <= 8, marks.join());
    }
  }
});

test("ticks are written short", () => {
  const texts = [0, 40, 1200, 99999, 3_500_000, 0.123456].map(formatTick);
  assert.deepEqual(texts, ["0", "40", "1,200", "100,000", "3.5M", "0.1235"]);
});

test("a curve has a value up to its end", () => {
  const points = /** @type {[number, number][]} */ ([[0, 5], [10, 4], [20, 3]]);
  assert.deepEqual([0, 9, 10, 20, 21].map((where) => pointBefore(points, where)?.[1]), [5, 5, 4, 3, undefined]);
});

test("numbers are sorted as numbers, texts with the numbers in them, and what lacks a value comes last", () => {
  const runs = [run("run 10", { skills: null }), run("run 9", { skills: 0.5 }), run("Run 1", { skills: 0.25 })];
  const order = (/** @type {string} */ key, /** @type {boolean} */ descending) =>
    sorted(runs, column(key), descending).map(({ name }) => name);
  assert.deepEqual(order("skills", false), ["Run 1", "run 9", "run 10"]);
  assert.deepEqual(order("skills", true), ["run 9", "Run 1", "run 10"]);
  assert.deepEqual(order("label", false), ["Run 1", "run 9", "run 10"]);
  assert.deepEqual(runs.map(({ name }) => name), ["run 10", "run 9", "Run 1"]);
});

test("the best is the lowest or the highest, and there is none among equals or of one", () => {
  const runs = [run("a", { bits_per_byte: 2, skills: 0.5 }), run("b", { bits_per_byte: 1, skills: 0.75 })];
  assert.equal(bestOf(column("bits_per_byte"), runs), 1);
  assert.equal(bestOf(column("skills"), runs), 0.75);
  assert.equal(bestOf(column("skills"), [runs[0], runs[0]]), null);
  assert.equal(bestOf(column("skills"), [runs[0]]), null);
  const timed = (/** @type {string} */ timing, ms = 1) => run("a", { milliseconds_per_token: ms, timing });
  assert.equal(bestOf(column("milliseconds_per_token"), [timed("128 tokens"), timed("128 tokens", 2)]), 1);
  assert.equal(bestOf(column("milliseconds_per_token"), [timed("128 tokens"), timed("992 tokens", 2)]), null);
  assert.equal(bestOf(column("depth"), [run("a", { depth: 1 }), run("b")]), null);
});

test("values are written as their column says, and none is a dash", () => {
  const values = { parameters: 35040, skills: 0.755, bytes_per_token: 3, milliseconds_per_token: 0.12345, steps: null };
  const one = run("a", { ...values, when: "2024-05-06T07:08:09" });
  const texts = [...Object.keys(values), "when", "tokenizer"].map((key) => shown(column(key), one));
  assert.deepEqual(texts, ["35,040", "75.5 %", "3.00", "0.123", "–", "2024-05-06 07:08", "bpe"]);
});

test("what a run differs in is named as in params.yaml, without the section of training", () => {
  const differs = { "train_model.steps": "500", "mix.x": "y" };
  assert.equal(differences(run("a", { differs })), "steps\u00a0500, mix.x\u00a0y");
});

test("a run is found again under another name", () => {
  const [named, other] = [run("new", { rev: "1" }), run("b", { rev: "3" })];
  assert.equal(findAgain(run("old", { rev: "1" }), [other, named]), named);
  assert.equal(findAgain(run("b", { rev: "2" }), [named]), undefined);
});

test("one or two ticked runs with models can chat, and others are told why not", () => {
  const [one, gone] = [run("a b&c"), run("b", { model: null })];
  assert.equal(chatAddress([one]), "/?model=a+b%26c");
  assert.equal(chatAddress([one, run("<b>")]), "/?model=a+b%26c&beside=%3Cb%3E");
  for (const ticked of [[], [one, one, one], [one, gone]]) assert.equal(chatAddress(ticked), null);
  assert.equal(selectionHint([one, one, one]), "3 runs ticked; one or two can chat.");
  assert.match(selectionHint([one, gone]), /^The model of b is not on this machine: `dvc pull`/);
});

test("a curve by tokens is one by steps times the tokens of a step", () => {
  const curve = { loss: [[1, 5], [2, 4]] };
  assert.deepEqual(lineOf(run("a"), curve, "loss", "tokens").points, [[8, 5], [16, 4]]);
  assert.deepEqual(lineOf(run("a"), curve, "loss", "step").points, curve.loss);
  assert.deepEqual(lineOf(run("a", { batch_size: null }), curve, "loss", "tokens").points, []);
});

test("why a run has no curve is told", () => {
  /** @type {[string, object, string | null][]} */
  const cases = [
    ["a", {}, "a: the training curve is missing on this machine, or has no values yet."],
    ["b", { other: [] }, "b: the training curve does not have these values."],
    ["c", { problem: "no file" }, "c: no file"],
    ["d", { loss: [[1, 2]] }, null],
  ];
  const lines = cases.map(([name, curve]) => lineOf(run(name), curve, "loss", "step"));
  assert.deepEqual(missingCurveNotes(lines), cases.flatMap(([, , note]) => note ?? []));
});

test("a listing is counted, and one without runs says how to make one", () => {
  const listing = { runs: [run("a")], notes: [], problem: null, read: 1e9 };
  assert.match(summary(listing), /^1 run, as of \d\d:\d\d\.$/);
  assert.match(summary({ ...listing, runs: [] }), /^There are no runs/);
  assert.equal(summary({ ...listing, runs: [], problem: "broken" }), "");
});

test("the sides of a verdict are groups, or the runs of the only one", () => {
  const [one, two, other] = [run("a1", { group: "a" }), run("a2", { group: "a" }), run("b,c", { group: "b" })];
  assert.equal(sidesOf([]), null);
  assert.equal(sidesOf([one]), null);
  assert.deepEqual(sidesOf([one, two]), [["a1"], ["a2"]]);
  assert.deepEqual(sidesOf([one, other, two]), [["a1", "a2"], ["b,c"]]);
  assert.equal(sidesOf([one, run("d", { model: null })]), null);
  assert.equal(sidesOf(Array.from("vwxyz", (name) => run(name))), null);
  const command = compareCommand([["a1", "a2"], ["it's"]]);
  assert.equal(command, "chatmill compare a1,a2 'it'\\''s' --data data/chat/test.jsonl");
});

test("the seeds that can be ticked are those that the server names for every ticked run of a group", () => {
  const of = (/** @type {string} */ name, /** @type {string[]} */ other_seeds, group = "g") =>
    run(name, { rev: `rev-${name}`, group, other_seeds: other_seeds.map((other) => `rev-${other}`) });
  // "a" and "same" are of one seed, of which the server names the latest, "a"
  const [a, same, b, c] = [of("a", ["b", "c"]), of("same", ["b", "c"]), of("b", ["a", "c"]), of("c", ["a", "b"])];
  const [h, i, alone] = [of("h", ["i"], "h"), of("i", ["h"], "h"), run("alone")];
  const runs = [a, same, b, c, h, i, alone];
  const found = (/** @type {Run[]} */ ...ticked) => untickedSeeds(ticked, runs).map(({ name }) => name);
  assert.deepEqual(found(a), ["b", "c"]);
  assert.deepEqual(found(same, b), ["c"]);
  assert.deepEqual(found(h, b), ["a", "c", "i"]);
  assert.deepEqual(found(a, b, c, alone), []);
});
