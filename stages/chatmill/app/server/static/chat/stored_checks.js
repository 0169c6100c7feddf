// @ts-check
/** Checks of conversations from a file, each part of which may be anything. Errors name the place: chats[0].models. */

import { FileError, MAX_LENGTH } from "./training_lines.js";

/** @typedef {import("./conversation.js").Answer} Answer */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Exchange} Exchange */
/** @typedef {import("../shared/api.js").Part} Part */
/** @typedef {import("../shared/api.js").Timings} Timings */

const KINDS = ["text", "call", "output"];
const MAX_DEPTH = 100; // of branches within branches
const ID = /^[0-9a-f]{24}$/;

/** A conversation with the known entries of `value`. Throws FileError for one that is missing or of another type.
 * @param {any} value
 * @param {string} place
 * @returns {Conversation}
 */
export function checkedConversation(value, place) {
  const { id, updated, models, system, exchanges, name } = object(value, place);
  if (!ID.test(text(id, `${place}.id`))) wrong(`${place}.id`, "24 hexadecimal digits");
  if (list(models, `${place}.models`, text).length > 2) wrong(`${place}.models`, "at most two");
  return {
    id,
    revision: 0,
    updated: number(updated, `${place}.updated`),
    models,
    system: text(system, `${place}.system`),
    exchanges: exchangesOf(exchanges, `${place}.exchanges`, 0),
    ...(name === undefined ? {} : { name: text(name, `${place}.name`) }),
  };
}

/** @param {unknown} value @param {string} place @param {number} depth */
function exchangesOf(value, place, depth) {
  if (depth > MAX_DEPTH) wrong(place, `at most ${MAX_DEPTH} branches within each other`);
  return list(value, place, (one, at) => exchange(one, at, depth));
}

/** @param {unknown} value @param {string} place @param {number} depth @returns {Exchange} */
function exchange(value, place, depth) {
  const { asked, answers, versions, branches } = object(value, place);
  /** @type {Exchange} */
  const read = { asked: text(asked, `${place}.asked`), answers: list(answers, `${place}.answers`, answer) };
  if (versions !== undefined) {
    read.versions = list(versions, `${place}.versions`, (all, at) => (all === null ? [] : list(all, at, answer)));
    read.versions.forEach((all, column) => replaceByVersion(read.answers, column, all));
  }
  if (branches !== undefined) {
    read.branches = list(branches, `${place}.branches`, (one, at) => {
      const branch = one === null ? null : exchangesOf(one, at, depth + 1);
      return branch?.length === 0 ? wrong(at, "an exchange") : branch;
    });
    if (read.branches.filter((one) => one === null).length !== 1) wrong(`${place}.branches`, "one null");
  }
  return read;
}

/** Make the shown answer of a column the one among its versions that is equal to it.
 * @param {Answer[]} answers
 * @param {number} column
 * @param {Answer[]} versions
 */
function replaceByVersion(answers, column, versions) {
  const shown = JSON.stringify(answers[column]);
  const same = versions.find((one) => JSON.stringify(one) === shown);
  if (same) answers[column] = same;
}

/** @param {unknown} value @param {string} place @returns {Answer} */
function answer(value, place) {
  const { model, parts, finish, problem, timings, promptIds, ids } = object(value, place);
  return {
    model: orNull(model, `${place}.model`, text),
    parts: list(parts, `${place}.parts`, part),
    finish: orNull(finish, `${place}.finish`, text),
    problem: orNull(problem, `${place}.problem`, text),
    timings: orNull(timings, `${place}.timings`, timingsOf),
    promptIds: list(promptIds, `${place}.promptIds`, number),
    ids: list(ids, `${place}.ids`, number),
  };
}

/** @param {unknown} value @param {string} place @returns {Part} */
function part(value, place) {
  const { kind, text: words } = object(value, place);
  if (!KINDS.includes(kind)) wrong(`${place}.kind`, `one of ${KINDS.join(", ")}`);
  return { kind, text: text(words, `${place}.text`) };
}

/** @param {unknown} value @param {string} place @returns {Timings} */
function timingsOf(value, place) {
  const timings = object(value, place);
  for (const [name, one] of Object.entries(timings)) orNull(one, `${place}.${name}`, number);
  for (const name of ["prompt_tokens", "completion_tokens", "context"]) number(timings[name], `${place}.${name}`);
  return /** @type {any} */ (timings);
}

/** @param {any} value @param {string} place @returns {Record<string, any>} */
function object(value, place) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) wrong(place, "an object");
  return value;
}

/** @template Item @param {any} value @param {string} place @param {(one: any, place: string) => Item} item */
function list(value, place, item) {
  if (!Array.isArray(value)) wrong(place, "a list");
  return /** @type {any[]} */ (value).map((one, index) => item(one, `${place}[${index}]`));
}

/** @template Item @param {any} value @param {string} place @param {(one: any, place: string) => Item} item */
function orNull(value, place, item) {
  return value === null ? null : item(value, place);
}

/** @param {any} value @param {string} place @returns {string} */
function text(value, place) {
  if (typeof value !== "string" || !value.isWellFormed()) wrong(place, "a text");
  if (value.length > MAX_LENGTH) wrong(place, `at most ${MAX_LENGTH / 1e6} MB`);
  return value;
}

/** @param {any} value @param {string} place @returns {number} */
function number(value, place) {
  if (!Number.isFinite(value)) wrong(place, "a number");
  return value;
}

/** @param {string} place @param {string} expected @returns {never} */
function wrong(place, expected) {
  throw new FileError(`${place}: expected ${expected}`);
}
