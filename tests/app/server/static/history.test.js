// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { findWords, hasWords, periodOf } from "../../../../stages/chatmill/app/server/static/chat/chat_search.js";
import { newAnswer, newConversation, titleOf } from "../../../../stages/chatmill/app/server/static/chat/conversation.js";
import { latestFirst, openHistory } from "../../../../stages/chatmill/app/server/static/chat/history.js";


/** @param {string} id @param {number} updated */
function dated(id, updated) {
  return { ...newConversation(["A"]), id, updated };
}

test("without a database chats are kept as long as the page is open", async () => {
  const history = await openHistory();
  for (const one of [dated("a", 1), dated("b", 3), dated("c", 2)]) await history.restore(one);
  assert.equal(history.lasts, false);
  assert.deepEqual(
    (await history.titles()).map(({ id }) => id),
    ["b", "c", "a"],
  );
  assert.equal((await history.all()).length, 3);
});

test("what is kept does not change with what was given or got", async () => {
  const history = await openHistory();
  const given = dated("a", 1);
  await history.put(given);
  given.system = "changed";
  const got = await history.get("a");
  assert.equal(got?.system, "");
  if (got) got.system = "changed too";
  assert.equal((await history.get("a"))?.system, "");
});

test("what is removed is gone and remembered as removed", async () => {
  const history = await openHistory();
  await history.put(dated("a", 1));
  await history.remove("a");
  assert.equal(await history.get("a"), undefined);
  assert.deepEqual([...history.removed], ["a"]);
});

test("the latest comes first", () => {
  assert.deepEqual(
    [{ updated: 1 }, { updated: 3 }, { updated: 2 }].sort(latestFirst).map(({ updated }) => updated),
    [3, 2, 1],
  );
});

test("times are told by the day, the week, the month and the name of the month", () => {
  const now = new Date(2026, 10, 24, 9).getTime();
  const periods = [
    [new Date(2026, 10, 24, 0, 0), "Today"],
    [new Date(2026, 10, 23, 23, 59), "Yesterday"],
    [new Date(2026, 10, 23, 0, 0), "Yesterday"],
    [new Date(2026, 10, 22, 23, 0), "Last 7 days"],
    [new Date(2026, 10, 10), "Last 30 days"],
    [new Date(2026, 2, 3), "March 2026"],
  ];
  for (const [time, period] of periods) assert.equal(periodOf(Number(time), now), period);
});

test("a chat is found by words in any of its texts, whatever their case", () => {
  const answer = { model: null, parts: [{ kind: "text", text: "It is DEEP." }], finish: null };
  const chat = { ...newConversation([], "Be kind"), exchanges: [{ asked: "How is the lake?", answers: [answer] }] };
  for (const words of ["", "lake", "deep LAKE", "kind"]) assert.ok(hasWords(/** @type {any} */ (chat), words), words);
  assert.ok(!hasWords(/** @type {any} */ (chat), "lake river"));
  assert.equal(titleOf({ .../** @type {any} */ (chat), name: " My  lake " }), "My lake");
});

test("a chat that was found opens at the exchange with most of the words", () => {
  const exchanges = [["one", "1"], ["two", "deep lake"], ["three", "lake"]].map(([asked, text]) => ({
    asked,
    answers: [{ ...newAnswer("A"), parts: [{ kind: /** @type {const} */ ("text"), text }] }],
  }));
  const chat = { ...newConversation(["A"]), exchanges };
  const found = ["LAKE", "lake deep", "three lake", "nothing"].map((words) => findWords(chat, words));
  assert.deepEqual(found, [1, 1, 2, -1]);
});
