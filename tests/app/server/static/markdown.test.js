// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { blocksOf } from "../../../../stages/chatmill/app/server/static/chat/markdown.js";

/** @typedef {import("../../../../stages/chatmill/app/server/static/chat/markdown.js").Tree} Tree */

const TAB = ' target="_blank" rel="noopener noreferrer"';
const LONG = 100_000;

/** A tree as HTML is written, without escapes. @param {Tree} tree @returns {string} */
function written(tree) {
  if (typeof tree === "string") return tree;
  const attributes = Object.entries(tree.attributes).map(([name, value]) => ` ${name}="${value}"`);
  return `<${tree.name}${attributes.join("")}>${tree.children.map(written).join("")}</${tree.name}>`;
}

/** @param {string} text */
function shown(text) {
  return blocksOf(text)
    .map(({ node }) => written(node))
    .join("");
}

/** @param {Tree} tree @returns {number} */
function depth(tree) {
  return typeof tree === "string" ? 0 : 1 + Math.max(0, ...tree.children.map(depth));
}

test("a star or an underscore inside a word marks nothing", () => {
  assert.equal(shown("2*3*4 a**b**c d_e_f g~~h~~i"), "<p>2*3*4 a**b**c d_e_f g~~h~~i</p>");
});

test("marks around words are elements, one inside of another", () => {
  assert.equal(shown("**a *b*** ~~c~~ `*d*`"), "<p><strong>a <em>b</em></strong> <s>c</s> <code>*d*</code></p>");
});

test("a table has the alignment of its columns as classes", () => {
  assert.equal(
    shown("| a | b |\n|---|:-:|\n| 1 | 2 |"),
    '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th class="to-center">b</th></tr></thead>' +
      '<tbody><tr><td>1</td><td class="to-center">2</td></tr></tbody></table></div>',
  );
});

test("a row that is short or long has as many cells as the head", () => {
  assert.match(shown("|a|b|\n|-|-|\n|1|\n|1|2|3|"), /<td>1<\/td><td><\/td><\/tr><tr><td>1<\/td><td>2<\/td><\/tr>/);
});

test("a quote holds blocks of its own", () => {
  assert.equal(shown("> # a\n> - b\n>\n> c"), "<blockquote><h3>a</h3><ul><li><p>b</p></li></ul><p>c</p></blockquote>");
});

test("code keeps its lines as they are, whether its end has come or not", () => {
  const [whole, open] = ["```js\n  a\n\n*b*\n```", "```js\n  a\n\n*b*"].map(shown);
  assert.equal(whole, open);
  assert.match(whole, /<span>js<\/span>.*<code> {2}a\n\n\*b\*<\/code>/s);
});

test("indented lines and entities are text", () => {
  assert.equal(shown("    a &amp; b"), "<p>a &amp; b</p>");
});

test("web and mail addresses are links, in a tab of their own", () => {
  const link = (/** @type {string} */ address, words = address) => `<a href="${address}"${TAB}>${words}</a>`;
  assert.equal(shown("[a](https://b.c)"), `<p>${link("https://b.c", "a")}</p>`);
  assert.equal(shown("<mailto:a@b.c> https://d.e/f, g"), `<p>${link("mailto:a@b.c")} ${link("https://d.e/f")}, g</p>`);
});

for (const address of ["javascript:alert(1)", "data:text/html,x", "vbscript:x", "file:///x", "//x.y", "/x", "x.y"]) {
  test(`an address like ${address} is text`, () => {
    for (const text of [`[a](${address})`, `![a](${address})`, `<${address}>`, `[a](<${address}>)`]) {
      assert.equal(shown(text), `<p>${text}</p>`);
    }
  });
}

test("an image is a link to it, and inside of a link its words", () => {
  assert.equal(shown("![a](http://b/c.png)"), `<p><a href="http://b/c.png"${TAB}>a</a></p>`);
  assert.equal(shown("[![a](http://b/c.png)](http://d)"), `<p><a href="http://d"${TAB}>a</a></p>`);
  assert.equal(shown("![](http://b)"), `<p><a href="http://b"${TAB}>http://b</a></p>`);
});

test("HTML is text, as a block and inside of a line", () => {
  for (const text of ["<script>alert(1)</script>", "<img src=x onerror=y>", "a <b>c</b> <!-- d -->", "<div>\n*"]) {
    assert.equal(shown(text), `<p>${text}</p>`);
  }
});

test("a definition of a link is text: nothing that was said is hidden", () => {
  assert.equal(shown("[a]: x.y\n\n[a]"), "<p>[a]: x.y</p><p>[a]</p>");
});

test("a line under a paragraph makes no heading of it while a list begins", () => {
  assert.equal(shown("a:\n-"), "<p>a:\n-</p>");
  assert.equal(shown("a:\n- b"), "<p>a:</p><ul><li><p>b</p></li></ul>");
});

test("blocks begin where their lines do, whatever ends a line", () => {
  const text = "a\r\n\r\n# b\rc\n\n- d\n- e";
  assert.deepEqual(
    blocksOf(text).map(({ start }) => text.slice(start, start + 3).trim()),
    ["a", "# b", "c", "- d"],
  );
});

test("a text is read the same from the start of any of its blocks", () => {
  const text = "a\n\n- b\n  - c\n+ d\n> e\nf\n\n|g|\n|-|\n|h|\n\n```\ni\n```\n# j\n3. k\n---\n";
  const blocks = blocksOf(text);
  assert.equal(blocks.length, 9);
  for (const [index, { start }] of blocks.entries()) {
    assert.deepEqual(
      blocksOf(text, start).map(({ node }) => node),
      blocks.slice(index).map(({ node }) => node),
    );
  }
});

test("a page is not nested without end", () => {
  for (const mark of ["> ", "- ", "> - ", "1. "]) {
    const [block] = blocksOf(`${mark.repeat(1000)}end`);
    assert.ok(depth(block.node) < 50, mark);
  }
});

test("marks that lie deep in one another are not marked, and their words stay", () => {
  const [block] = blocksOf(`${"*a _b ".repeat(5000)}${"c_ d* ".repeat(5000)}`);
  assert.ok(depth(block.node) < 50);
  assert.equal(written(block.node).match(/d/g)?.length, 5000);
});

const LONG_TEXTS = ["[", "![", "*", ">", "> ", "`", "`a``b", "- ", "1. a\n", "**a ", "[a](", "<a@", "http://", "\\",
  "|a", "~~a", "- a\n\n", "> ```\n", "mailto:", "&", "\t", "_a *b ", "](", "](http://a)", "\n", "#", "a|\n-|\n"];
for (const unit of LONG_TEXTS) {
  test(`${LONG} characters of ${JSON.stringify(unit)} are read in about a second`, () => {
    const text = unit.repeat(LONG / unit.length);
    const before = process.cpuUsage();
    blocksOf(text);
    assert.ok(process.cpuUsage(before).user < 1.5e6); // microseconds
  });
}

test("the head of a table with very many columns is read", () => {
  const columns = 5000;
  const [block] = blocksOf(`${"|a".repeat(columns)}\n${"|-".repeat(columns)}\n`);
  assert.equal(written(block.node).match(/<th>/g)?.length, columns);
});
