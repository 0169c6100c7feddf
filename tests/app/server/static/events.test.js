// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { EventReader } from "../../../../stages/chatmill/app/server/static/shared/events.js";

const STREAM = ': hello\r\n\ndata: {"a": "é🙂"}\n\ndata:two\r\ndata: lines\r\n\r\nid: 4\ndata: [DONE]\r\r\n';
const DATA = ['{"a": "é🙂"}', "two\nlines", "[DONE]"];
const bytes = new TextEncoder().encode(STREAM);

/** What a reader finds in bytes that are cut at these places. @param {number[]} cuts */
function found(cuts) {
  const reader = new EventReader();
  return [...cuts, bytes.length].flatMap((cut, index, all) => reader.push(bytes.slice(all[index - 1] ?? 0, cut)));
}

test("events are the same wherever their bytes are cut in two", () => {
  for (let cut = 0; cut <= bytes.length; cut += 1) assert.deepEqual(found([cut]), DATA, `cut at ${cut}`);
});

test("events are the same wherever their bytes are cut in three", () => {
  for (let one = 0; one <= bytes.length; one += 1) {
    for (let other = one; other <= bytes.length; other += 1) assert.deepEqual(found([one, other]), DATA);
  }
});

test("events are the same when every byte comes alone", () => {
  assert.deepEqual(found([...bytes.keys()]), DATA);
});

test("an event that is not complete is held back", () => {
  const reader = new EventReader();
  assert.deepEqual(reader.push(new TextEncoder().encode("data: a\n")), []);
  assert.deepEqual(reader.push(new TextEncoder().encode("\n")), ["a"]);
});

test("only one blank after the colon belongs to the form, and fields without data are no events", () => {
  const reader = new EventReader();
  assert.deepEqual(reader.push(new TextEncoder().encode("data:  a\n\nevent: x\n\n\n\ndata\n\n")), [" a"]);
});
