// @ts-check
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import {
  ApiError,
  EventReader,
  fetchModels,
  streamChat,
} from "../../../../stages/chatmill/app/server/static/shared/api.js";

const STREAM = ': hello\r\n\ndata: {"a": "é🙂"}\n\ndata:two\r\ndata:  lines\r\n\r\nevent: x\n\ndata: [DONE]\r\r\n';
const DATA = ['{"a": "é🙂"}', "two\n lines", "[DONE]"];
const bytes = new TextEncoder().encode(STREAM);

const browsers = globalThis.fetch;
afterEach(() => {
  globalThis.fetch = browsers;
});

/** What a reader finds in bytes that are cut at these places. @param {number[]} cuts */
function found(cuts) {
  const reader = new EventReader();
  return [...cuts, bytes.length].flatMap((cut, index, all) => reader.push(bytes.slice(all[index - 1] ?? 0, cut)));
}

test("events are the same wherever their bytes are cut", () => {
  for (let one = 0; one <= bytes.length; one += 1) {
    for (let other = one; other <= bytes.length; other += 1) assert.deepEqual(found([one, other]), DATA);
  }
  assert.deepEqual(found([...bytes.keys()]), DATA);
});

/** The chunks of an answer with this body. @param {string} body */
async function chunksOf(body) {
  globalThis.fetch = async () => new Response(body);
  const chunks = [];
  for await (const chunk of streamChat({}, new AbortController().signal)) chunks.push(chunk);
  return chunks;
}

test("an answer is the chunks before its end", async () => {
  assert.deepEqual(await chunksOf('data: {"choices": []}\n\ndata: [DONE]\n\ndata: {"late": 1}\n\n'), [{ choices: [] }]);
});

test("an answer that breaks off is an error, and so is one that tells of one", async () => {
  await assert.rejects(chunksOf('data: {"choices": []}\n\n'), { message: /ended in the middle/ });
  await assert.rejects(chunksOf('data: {"error": {"message": "no memory"}}\n\n'), { message: "no memory" });
});

test("an error has the server's words, its status and how long to wait", async () => {
  const headers = { "Retry-After": "2" };
  /** @type {[Response, object][]} */
  const cases = [
    [
      new Response('{"error": {"message": "busy"}}', { status: 503, headers }),
      { constructor: ApiError, message: "busy", status: 503, retryAfter: 2 },
    ],
    [new Response("", { status: 500, statusText: "Oops" }), { message: "the server answered 500 Oops" }],
    [new Response("<html>", { status: 502 }), { message: "<html>", retryAfter: null }],
  ];
  for (const [response, error] of cases) {
    globalThis.fetch = async () => response;
    await assert.rejects(fetchModels(), error);
  }
  globalThis.fetch = () => Promise.reject(new TypeError("Failed to fetch"));
  await assert.rejects(fetchModels(), { message: /does not answer/, status: 0 });
});
