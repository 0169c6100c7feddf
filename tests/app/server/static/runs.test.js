// @ts-check
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { axis, formatTick, nearest, toPixels, pointBefore } from "../../../../stages/chatmill/app/server/static/runs/axis.js";
import {
  beginsDescending,
  bestOf,
  COLUMNS,
  shown,
  sorted,
} from "../../../../stages/chatmill/app/server/static/runs/columns.js";
import {
  compareCommand,
  differences,
  estimate,
  groupsOf,
  merged,
  sidesOf,
  untickedSeeds,
} from "../../../../stages/chatmill/app/server/static/runs/groups.js";
import { chatAddress, fetchChangedCurve, reportAddress } from "../../../../stages/chatmill/app/server/static/runs/requests.js";
import {
  canChat,
  findAgain,
  missingCurveNotes,
  lineOf,
  passes,
  selectionHint,
  summary,
  valuesOf,
} from "../../../../stages/chatmill/app/server/static/runs/selection.js";

/** @typedef {import("../../../../stages/chatmill/app/server/static/runs/requests.js").Run} Run */

const browsers = globalThis.fetch;
afterEach(() => {
  globalThis.fetch = browsers;
});

/** @param {string} name @param {Record<string, any>} figures @returns {Run} */
function run(name, figures = {}) {
  const facts = { name, label: name, kind: "experiment", rev: "abc", state: "done", model: "m", report: false };
  const settings = { batch_size: 8, tokenizer: "bpe", depth: 2, seed: "1", group: null, differs: {}, other_seeds: [] };
  return { ...facts, problem: null, ...settings, ...figures };
}

/** @param {string} key */
function column(key) {
  const found = COLUMNS.find((one) => one.key === key);
  assert.ok(found);
  return found;
}

test("marks lie at 1, 2 or 5 times a power of ten, around all values", () => {
  assert.deepEqual(axis("x", [0, 40]).marks, [0, 10, 20, 30, 40]);
  assert.deepEqual(axis("x", [1.234, 1.301]).marks, [1.22, 1.24, 1.26, 1.28, 1.3, 1.32]);
  assert.deepEqual(axis("x", [-3, 4]).marks, [-4, -2, 0, 2, 4]);
  assert.deepEqual(axis("x", [0, 0.3]).marks, [0, 0.1, 0.2, 0.3]);
});

test("an axis of one value has that inside, and its ends apart", () => {
  for (const value of [0, 5, -5, 1e-9, 12345678]) {
    const { low, high } = axis("x", [value]);
    assert.ok(low <= value && value <= high && low < high, String(value));
  }
});

test("an axis holds its values and has few marks, whatever their size", () => {
  for (let exponent = -12; exponent <= 12; exponent += 1) {
    for (const [from, to] of [
      [1, 9.99],
      [0, 1],
      [-7, 3],
    ]) {
      const { low, high, marks } = axis("x", [from * 10 ** exponent, to * 10 ** exponent]);
      assert.ok(low <= from * 10 ** exponent * (1 + 1e-9) + 1e-20 && high >= to * 10 ** exponent * (1 - 1e-9));
      assert.ok(marks.length >= 2 && marks.length <= 8, marks.join());
    }
  }
});

test("the ends of the axes are the corners of the drawing", () => {
  const at = toPixels(axis("x", [0, 10]), axis("y", [0, 10]));
  assert.deepEqual(
    [at(0, 0), at(10, 10)],
    [
      [48, 240],
      [454, 34],
    ],
  );
});

test("values on an axis are formatTick", () => {
  assert.deepEqual([0, 40, 1200, 99999, 3_500_000, 0.123456].map(formatTick), [
    "0",
    "40",
    "1,200",
    "100,000",
    "3.5M",
    "0.1235",
  ]);
});

test("the nearest point is found, the first of two", () => {
  assert.equal(
    nearest(
      [
        [0, 0],
        [10, 0],
        [10, 10],
      ],
      9,
      8,
    ),
    2,
  );
  assert.equal(
    nearest(
      [
        [0, 0],
        [2, 0],
      ],
      1,
      0,
    ),
    0,
  );
});

test("a curve has a value up to its end", () => {
  const points = /** @type {[number, number][]} */ ([
    [0, 5],
    [10, 4],
    [20, 3],
  ]);
  assert.deepEqual(
    [0, 9, 10, 20].map((where) => pointBefore(points, where)?.[1]),
    [5, 5, 4, 3],
  );
  assert.equal(pointBefore(points, 21), undefined);
  assert.equal(pointBefore([], 0), undefined);
});

test("numbers are sorted as numbers, texts with the numbers in them, and what lacks a value comes last", () => {
  const runs = [run("run 10", { skills: null }), run("run 9", { skills: 0.5 }), run("Run 1", { skills: 0.25 })];
  const order = (/** @type {string} */ key, /** @type {boolean} */ descending) =>
    sorted(runs, column(key), descending).map(({ name }) => name);
  assert.deepEqual(order("skills", false), ["Run 1", "run 9", "run 10"]);
  assert.deepEqual(order("skills", true), ["run 9", "Run 1", "run 10"]);
  assert.deepEqual(order("label", false), ["Run 1", "run 9", "run 10"]);
});

test("sorting leaves the given runs as they were", () => {
  const runs = [run("b"), run("a")];
  sorted(runs, column("label"), true);
  assert.deepEqual(
    runs.map(({ name }) => name),
    ["b", "a"],
  );
});

test("the best is the lowest or the highest, and there is none among equals or of one", () => {
  const runs = [run("a", { bits_per_byte: 2, skills: 0.5 }), run("b", { bits_per_byte: 1, skills: 0.75 })];
  assert.equal(bestOf(column("bits_per_byte"), runs), 1);
  assert.equal(bestOf(column("skills"), runs), 0.75);
  assert.equal(bestOf(column("skills"), [runs[0], runs[0]]), null);
  assert.equal(bestOf(column("skills"), [runs[0]]), null);
  assert.equal(bestOf(column("depth"), [run("a", { depth: 1 }), run("b")]), null);
});

test("what is better high, and times, begin with the highest", () => {
  assert.deepEqual(
    ["skills", "when", "bits_per_byte", "label"].map((key) => beginsDescending(column(key))),
    [true, true, false, false],
  );
});

test("values are written as their column says, and none is a dash", () => {
  const one = run("a", {
    parameters: 35040,
    skills: 0.755,
    bytes_per_token: 3,
    milliseconds_per_token: 0.12345,
    when: "2024-05-06T07:08:09",
  });
  const keys = ["parameters", "skills", "bytes_per_token", "milliseconds_per_token", "when", "tokenizer"];
  assert.deepEqual(
    keys.map((key) => shown(column(key), one)),
    ["35,040", "75.5 %", "3.00", "0.123", "2024-05-06 07:08", "bpe"],
  );
  assert.equal(shown(column("steps"), run("a", { steps: null })), "–");
});

test("filters are all to be passed, and names hold what was written in any case", () => {
  const any = { tokenizer: "", depth: "", named: "" };
  assert.ok(passes(run("Tenth"), any) && passes(run("Tenth"), { tokenizer: "bpe", depth: "2", named: " TEN " }));
  assert.ok(!passes(run("Tenth"), { ...any, depth: "20" }) && !passes(run("Tenth"), { ...any, tokenizer: "b" }));
  assert.deepEqual(valuesOf([run("a"), run("b", { depth: null }), run("c", { depth: 3 }), run("d")], "depth"), [2, 3]);
});

test("a run is found again under another name, and when it has ended", () => {
  const [named, ended] = [run("new", { rev: "1" }), run("b", { rev: "3" })];
  assert.equal(findAgain(run("old", { rev: "1" }), [ended, named]), named);
  assert.equal(findAgain(run("b (running)", { label: "b", rev: "2", state: "running" }), [named, ended]), ended);
  assert.equal(findAgain(run("b", { rev: "2" }), [named]), undefined);
});

test("one or two ticked runs with models can chat, and others are told why not", () => {
  const [one, gone, failed] = [run("a"), run("b", { model: null }), run("c", { model: null, state: "failed" })];
  assert.deepEqual([[], [one], [one, one], [one, one, one], [one, gone]].map(canChat), [
    false,
    true,
    true,
    false,
    false,
  ]);
  assert.match(selectionHint([one]), /^`chatmill page --model \S+ -o chat.html` makes a page/);
  assert.equal(selectionHint([one, one, one]), "3 runs ticked; one or two can chat.");
  assert.match(selectionHint([one, gone]), /^The model of b is not on this machine: `dvc pull`/);
  assert.equal(selectionHint([failed]), "c has no model to chat with.");
});

test("a curve by tokens is one by steps times the tokens of a step", () => {
  const curve = {
    loss: [
      [1, 5],
      [2, 4],
    ],
  };
  assert.deepEqual(lineOf(run("a"), curve, "loss", "tokens").points, [
    [8, 5],
    [16, 4],
  ]);
  assert.deepEqual(lineOf(run("a"), curve, "loss", "step").points, curve.loss);
  assert.deepEqual(lineOf(run("a", { batch_size: null }), curve, "loss", "tokens").points, []);
});

test("runs without a curve are told together, by the reason", () => {
  const lines = [
    ["a", {}],
    ["b", { other: [] }],
    ["c", {}],
    ["d", { problem: "no file" }],
    ["e", { loss: [[1, 2]] }],
  ];
  const read = lines.map(([name, curve]) => lineOf(run(String(name)), Object(curve), "loss", "step"));
  assert.deepEqual(missingCurveNotes(read), [
    "a, c: the training curve is missing on this machine, or has no values yet.",
    "b: the training curve does not have these values.",
    "d: no file",
  ]);
  const [failed, queued] = ["failed", "queued"].map((state) => lineOf(run(state, { state }), {}, "loss", "step"));
  assert.deepEqual(missingCurveNotes([failed, queued]), [
    "failed: DVC has removed the curve of a failed run; it stays here if it was watched before.",
    "queued: it waits in DVC's queue.",
  ]);
});

test("a listing is pluralize, and one without runs says how to make one", () => {
  const listing = { runs: [run("a")], notes: [], problem: null, read: 0, complete: true };
  assert.match(summary(listing), /^1 run, as of \d\d:\d\d\.$/);
  assert.match(summary({ ...listing, runs: [] }), /^There are no runs/);
  assert.equal(summary({ ...listing, runs: [], problem: "broken" }), "");
  assert.match(summary({ ...listing, complete: false }), /^1 run, as of .*\. DVC is still asked /);
  assert.match(summary({ ...listing, runs: [], complete: false }), /^Reading the runs/);
});

test("names stand in addresses whatever they hold", () => {
  assert.equal(reportAddress("a/../b?c"), "/runs/a%2F..%2Fb%3Fc/report");
  assert.equal(chatAddress(["a b&c"]), "/?model=a+b%26c");
  assert.equal(chatAddress(["a", "<b>"]), "/?model=a&beside=%3Cb%3E");
});

test("a curve is fetched again only if it has changed, and remains while the server does not answer", async () => {
  const [before, after] = [{ loss: [[1, 5]] }, { loss: [[1, 4]] }];
  const answers = [Response.json(before), Response.json(after), new Response("", { status: 500 })];
  const asked = /** @type {string[]} */ ([]);
  globalThis.fetch = async (address) => {
    asked.push(String(address));
    return answers.shift() ?? Response.error();
  };
  assert.equal(await fetchChangedCurve("a b", before), null);
  assert.deepEqual(await fetchChangedCurve("a b", before), after);
  assert.equal(await fetchChangedCurve("a b", after), null);
  assert.equal(await fetchChangedCurve("a b", after), null);
  assert.deepEqual(asked, Array(4).fill("/runs/a%20b/curve.json"));
});

test("runs of a group are merged into their mean, with an interval by Student's t", () => {
  const runs = [
    run("a1", { group: "a", skills: 0.5, bits_per_byte: 1 }),
    run("b", { group: "b", skills: 0.25, bits_per_byte: 2 }),
    run("a2", { group: "a", skills: 0.75, bits_per_byte: null }),
    run("c"),
  ];
  assert.deepEqual(groupsOf(runs).map((group) => group.map(({ name }) => name)), [["a1", "a2"], ["b"], ["c"]]);
  const [first, second, third] = merged(runs);
  assert.deepEqual([first.members, first.label, first.kind], [["a1", "a2"], "a1, a2", "2 seeds"]);
  assert.deepEqual([first.skills, first.bits_per_byte, first.intervals.bits_per_byte], [0.625, 1, null]);
  const [low, high] = first.intervals.skills;
  assert.ok(Math.abs(low - (0.625 - 12.71 * 0.125)) < 1e-9 && Math.abs(high - (0.625 + 12.71 * 0.125)) < 1e-9);
  assert.deepEqual([second, third], [runs[1], runs[3]]);
  assert.deepEqual(estimate([null]), { mean: null, interval: null });
  assert.deepEqual(estimate([3, null]), { mean: 3, interval: null });
  assert.deepEqual(estimate(Array(99).fill(2)), { mean: 2, interval: [2, 2] });
});

test("the sides of a verdict are groups, or the runs of the only one", () => {
  const [one, two, other] = [run("a1", { group: "a" }), run("a2", { group: "a" }), run("b,c", { group: "b" })];
  assert.equal(sidesOf([]), null);
  assert.equal(sidesOf([one]), null);
  assert.deepEqual(sidesOf([one, two]), [["a1"], ["a2"]]);
  assert.deepEqual(sidesOf([one, other, two]), [["a1", "a2"], ["b,c"]]);
  assert.equal(sidesOf([one, run("d", { model: null })]), null);
  assert.equal(sidesOf(Array.from("vwxyz", (name) => run(name))), null);
  assert.equal(
    compareCommand([["a1", "a2"], ["it's"]]),
    "chatmill compare a1,a2 'it'\\''s' --data data/chat/test.jsonl",
  );
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
  assert.deepEqual(found(), []);
});

test("what a run differs in is named as in params.yaml, without the section of training", () => {
  assert.equal(differences(run("a")), "");
  const differs = { "train_model.steps": "500", "mix.x": "y" };
  assert.equal(differences(run("a", { differs })), "steps\u00a0500, mix.x\u00a0y");
});
