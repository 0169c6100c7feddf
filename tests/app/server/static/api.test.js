// @ts-check
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import {
  ApiError,
  fetchModels,
  onKeyNeeded,
  streamChat,
} from "../../../../stages/chatmill/app/server/static/shared/api.js";

const browsers = globalThis.fetch;
afterEach(() => {
  globalThis.fetch = browsers;
});

/** Have the server answer with these, one after another; the headers of the requests. @param {...Response} answers */
function answering(...answers) {
  const requests = /** @type {Headers[]} */ ([]);
  globalThis.fetch = async (_, options) => {
    requests.push(new Headers(options?.headers));
    return answers.shift() ?? Response.error();
  };
  return requests;
}

/** @param {string} body */
async function chunksOf(body) {
  answering(new Response(body));
  const chunks = [];
  for await (const chunk of streamChat({}, new AbortController().signal)) chunks.push(chunk);
  return chunks;
}

test("an answer is the chunks before its end", async () => {
  assert.deepEqual(await chunksOf('data: {"choices": []}\n\ndata: [DONE]\n\ndata: {"late": 1}\n\n'), [{ choices: [] }]);
});

test("an answer that breaks off is an error, and so is one that tells of one", async () => {
  await assert.rejects(chunksOf('data: {"choices": []}\n\n'), { message: /ended in the middle/ });
  await assert.rejects(chunksOf('data: {"error": {"message": "no memory", "code": "full"}}\n\n'), {
    message: "no memory",
    code: "full",
  });
});

test("an error has the server's words, its status and how long to wait", async () => {
  answering(new Response('{"error": {"message": "busy"}}', { status: 503, headers: { "Retry-After": "2" } }));
  await assert.rejects(fetchModels(), { constructor: ApiError, message: "busy", status: 503, retryAfter: 2 });
});

test("an error without words is told by its status", async () => {
  answering(new Response("", { status: 500, statusText: "Oops" }), new Response("<html>", { status: 502 }));
  await assert.rejects(fetchModels(), { message: "the server answered 500 Oops", retryAfter: null });
  await assert.rejects(fetchModels(), { message: "<html>" });
});

test("a server that is not there is told", async () => {
  globalThis.fetch = () => Promise.reject(new TypeError("Failed to fetch"));
  await assert.rejects(fetchModels(), { message: /does not answer/, status: 0 });
});

test("a key is asked for until it fits, and then sent", async () => {
  const refused = () => new Response('{"error": {"message": "no key"}}', { status: 401 });
  const requests = answering(refused(), refused(), new Response('{"data": []}'), new Response('{"data": []}'));
  const keys = ["wrong", "right"];
  onKeyNeeded(async () => keys.shift() ?? null);
  await fetchModels();
  await fetchModels();
  const sent = requests.map((headers) => headers.get("Authorization"));
  assert.deepEqual(sent, [null, "Bearer wrong", "Bearer right", "Bearer right"]);
});
