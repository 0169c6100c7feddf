// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { hasWords, periodOf, showWords } from "../../../../stages/chatmill/app/server/static/chat/chat_search.js";
import { newAnswer, newConversation, textOf, titleOf } from "../../../../stages/chatmill/app/server/static/chat/conversation.js";
import { latestFirst, openHistory } from "../../../../stages/chatmill/app/server/static/chat/history.js";

/** @typedef {import("../../../../stages/chatmill/app/server/static/chat/conversation.js").Conversation} Conversation */
/** @typedef {import("../../../../stages/chatmill/app/server/static/chat/conversation.js").Exchange} Exchange */

/** @param {string} id @param {number} updated */
function dated(id, updated) {
  return { ...newConversation(["A"]), id, updated };
}

test("without a database chats are kept as long as the page is open", async () => {
  const history = await openHistory();
  await history.putAll([dated("a", 1), dated("b", 3), dated("c", 2)]);
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

/** @param {string} asked @param {string[]} texts of the versions, the first of which is shown @returns {Exchange} */
function exchange(asked, ...texts) {
  const versions = texts.map((text) => ({ ...newAnswer("A"), parts: [{ kind: /** @type {const} */ ("text"), text }] }));
  return { asked, answers: versions.slice(0, 1), versions: [versions] };
}

/** A chat with a branch in another: one a; one b c; one b d, which is shown. @returns {Conversation} */
function branched() {
  const last = { ...exchange("d", "four", "five"), branches: [[exchange("c", "three")], null] };
  const second = { ...exchange("b", "two"), branches: [[exchange("a", "six", "seven")], null] };
  return { ...newConversation(["A"]), exchanges: [exchange("one"), second, last] };
}

test("a chat is found by words of branches and answers that are not shown, and opens on those", () => {
  for (const [words, asked, answer, at] of /** @type {[string, string, string, number][]} */ ([
    ["FOUR", "one b d", "four", 2],
    ["five two", "one b d", "five", 1],
    ["three", "one b c", "three", 2],
    ["one seven", "one a", "seven", 0],
    ["six nothing", "one a", "six", 1],
    ["nothing", "one b d", "four", -1],
  ])) {
    const chat = branched();
    assert.equal(hasWords(chat, words), !words.includes("nothing"), words);
    assert.equal(showWords(chat, words), at, words);
    assert.equal(chat.exchanges.map(({ asked: one }) => one).join(" "), asked, words);
    const last = chat.exchanges[chat.exchanges.length - 1];
    assert.equal(textOf(last.answers[0].parts), answer, words);
    assert.ok(last.versions?.[0].includes(last.answers[0]), words);
  }
});
