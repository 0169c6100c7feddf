// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { runsOf, withColours } from "../../../../stages/chatmill/app/server/static/chat/highlighting.js";
import { blocksOf } from "../../../../stages/chatmill/app/server/static/chat/markdown.js";

const STARTS = ["`${", "(", "'", "<a ", "<script>", "a::", "<?php ", "a", "[", "\n", "/*", "{{"];
const LANGUAGES = ["js", "python", "html", "php", "ruby", "md"];

/** The kinds and texts of runs, without those that have no colour. @param {string} language @param {string} code */
function coloured(language, code) {
  return runsOf(language, code)
    .filter(({ kind }) => kind)
    .map(({ kind, text }) => [kind, text]);
}

test("keywords, names, numbers, texts and comments have their colours", () => {
  assert.deepEqual(coloured("python", "def f(): return 'a' + 1 # b"), [
    ["keyword", "def"],
    ["name", "f"],
    ["keyword", "return"],
    ["string", "'a'"],
    ["number", "1"],
    ["comment", "# b"],
  ]);
});

test("what stands inside a text has colours of its own", () => {
  assert.deepEqual(coloured("js", "`a ${1} b`"), [
    ["string", "`a "],
    ["number", "1"],
    ["string", " b`"],
  ]);
});

test("the language is the first word after the fence", () => {
  for (const info of ["JS", "js {1}", "js,ignore"]) assert.deepEqual(coloured(info, "if"), [["keyword", "if"]]);
});

test("code of an unknown language and long code are one text", () => {
  for (const [language, code] of [
    ["x", "if"],
    ["constructor", "if"],
    ["js", "if ".repeat(5000)],
  ]) {
    assert.deepEqual(runsOf(language, code), [{ kind: "", text: code }]);
  }
});

test("no character of a code is lost, and hostile code is coloured in about a second", () => {
  for (const language of LANGUAGES) {
    for (const start of STARTS) {
      const code = start.repeat(8000 / start.length);
      const before = process.cpuUsage();
      assert.equal(runsOf(language, code).map(({ text }) => text).join(""), code);
      assert.ok(process.cpuUsage(before).user < 2e6, `${language} ${start}`); // microseconds
    }
  }
});

test("code in a list or quote has colours, and all else stays", () => {
  const [block] = blocksOf("- a\n  > ```js\n  > if\n  > ```\n");
  const shown = JSON.stringify(withColours(block.node));
  assert.match(shown, /"name":"span","attributes":\{"class":"code-keyword"\},"children":\["if"\]/);
  assert.equal(shown.replace(/\{"name":"span","attributes":\{"class":"code-keyword"\},"children":\["if"\]\}/, '"if"'),
    JSON.stringify(block.node));
});
