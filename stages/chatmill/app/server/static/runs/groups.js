// @ts-check
/** Groups of runs that differ by their seed alone: their sides in a verdict, and their means in the table. */

import { COLUMNS } from "./columns.js";
import { pluralize } from "../shared/text_format.js";

/** @typedef {import("./requests.js").Run} Run */

const MAX_SIDES = 4; // of a verdict
const T = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26]; // of 95 % intervals, by degrees of freedom from 1 on
const MANY = 1.96;

/** Runs by group, in their order; a run without parameters is a group by itself.
 * @param {Run[]} runs
 * @returns {Run[][]}
 */
export function groupsOf(runs) {
  /** @type {Map<string, Run[]>} */
  const groups = new Map();
  for (const run of runs) {
    const key = run.group ?? run.name;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()];
}

/** One run for each group: that of its only run, or the means of several, with their intervals.
 * @param {Run[]} runs
 * @returns {Run[]}
 */
export function merged(runs) {
  return groupsOf(runs).map((group) => (group.length === 1 ? group[0] : mean(group)));
}

/** @param {Run[]} group @returns {Run} */
function mean(group) {
  const keys = COLUMNS.filter(({ best }) => best).map(({ key }) => key);
  const found = new Map(keys.map((key) => [key, estimate(group.map((run) => run[key]))]));
  return {
    ...group[0],
    kind: pluralize(group.length, "seed"),
    label: group.map((run) => run.label).join(", "),
    members: group.map((run) => run.name),
    report: false,
    ...Object.fromEntries(keys.map((key) => [key, found.get(key)?.mean ?? null])),
    intervals: Object.fromEntries(keys.map((key) => [key, found.get(key)?.interval ?? null])),
  };
}

/** The mean of values, and its 95 % interval by Student's t; null where there are none, or too few.
 * @param {(number | null)[]} values
 */
export function estimate(values) {
  const known = values.filter((value) => value !== null);
  const number = known.length;
  if (!number) return { mean: null, interval: null };
  const middle = known.reduce((sum, value) => sum + value, 0) / number;
  if (number < 2) return { mean: middle, interval: null };
  const variance = known.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (number - 1);
  const half = (T[number - 2] ?? MANY) * Math.sqrt(variance / number);
  return { mean: middle, interval: [middle - half, middle + half] };
}

/** The sides of a verdict on the ticked runs: their groups; if that is one, each run by itself. Null if there is none.
 * @param {Run[]} ticked
 * @returns {string[][] | null}
 */
export function sidesOf(ticked) {
  const groups = groupsOf(ticked);
  const sides = groups.length === 1 ? ticked.map((run) => [run]) : groups;
  const fits = sides.length >= 2 && sides.length <= MAX_SIDES && ticked.every((run) => run.model);
  return fits ? sides.map((side) => side.map((run) => run.name)) : null;
}

/** The runs of other seeds that the server names for every ticked run of a group.
 * @param {Run[]} ticked
 * @param {Run[]} runs
 */
export function untickedSeeds(ticked, runs) {
  const common = (/** @type {Run[]} */ [first, ...rest]) =>
    first.other_seeds.filter((rev) => rest.every((run) => run.other_seeds.includes(rev)));
  const revs = new Set(groupsOf(ticked).flatMap(common));
  return runs.filter((run) => revs.has(run.rev));
}

/** The command that gives the same verdict in a terminal.
 * @param {string[][]} sides
 */
export function compareCommand(sides) {
  return `chatmill compare ${sides.map((names) => quoted(names.join(","))).join(" ")} --data data/chat/test.jsonl`;
}

/** A word of a shell.
 * @param {string} text
 */
function quoted(text) {
  return /^[\w./,@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** What a run differs in from most: "steps 500, depth 4"; "" where in nothing.
 * @param {Run} run
 */
export function differences(run) {
  return Object.entries(run.differs)
    .map(([key, value]) => `${key.replace(/^train_model\./, "")}\u00a0${value}`)
    .join(", ");
}
