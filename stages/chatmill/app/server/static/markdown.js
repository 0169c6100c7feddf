/** Text with the marks of Markdown as nodes: paragraphs, headings, lists, code, bold and italic.
 *
 * Everything else is text as it stands: HTML, links and images. A star or underscore inside a word marks nothing, so
 * that `2*3*4` keeps its stars. Text that grows is read on from its last open block.
 */

import { button, element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^(#{1,6}) +(.*)$/;
const ITEM = /^ ?(?:([-*+])|(\d{1,9})([.)])) +(.*)$/;
const DEEPEST = 8; // lists inside lists; what lies deeper is text
const MARKS = /`+|\*+|_+|\\[`*_]/g;
const WORD = /[\p{L}\p{N}]/u;

/** A text that grows, as nodes inside of `node`: blocks that are complete are made once. */
export class MarkdownView {
  #text = "";
  #closed = 0; // where the blocks begin that may still change
  #open = []; // their nodes

  constructor(node) {
    this.node = node;
  }

  /** How many characters at the end are drawn anew with whatever comes; code is only lengthened. */
  get unsettled() {
    return this.#open[0]?.className === "code" ? 0 : this.#text.length - this.#closed;
  }

  /** Show a text that begins with the one that was shown before. */
  update(text) {
    if (text === this.#text) return;
    const blocks = split(text, this.#closed);
    if (!this.#lengthen(blocks)) {
      for (const node of this.#open) node.remove();
      const line = text.lastIndexOf("\n") + 1; // not yet whole: it may turn out to belong to the block before it
      const open = blocks.length - (blocks.at(-1)?.start === line ? 2 : 1);
      blocks.slice(0, Math.max(open, 0)).forEach((block) => show(block, this.node, 0));
      this.#open = blocks.slice(Math.max(open, 0)).map((block) => show(block, this.node, 0));
      this.#closed = blocks[Math.max(open, 0)]?.start ?? this.#closed;
    }
    this.#text = text;
  }

  /** Whether what is new is more of the code at the end, which is then written on. */
  #lengthen(blocks) {
    const code = this.#open.length === 1 && blocks.length === 1 && blocks[0].kind === "code" && this.#open[0];
    const shown = code && code.querySelector("code")?.firstChild;
    if (!shown?.data || !blocks[0].text.startsWith(shown.data)) return false;
    shown.appendData(blocks[0].text.slice(shown.data.length));
    return true;
  }
}

/** Put a whole text into a node. */
export function render(text, node, depth = 0) {
  for (const block of split(text, 0)) show(block, node, depth);
}

/** The blocks of a text from a position on: {kind, start, text, …}. */
function split(text, position) {
  const blocks = [];
  let open = null;
  for (const [start, line] of linesOf(text, position)) {
    if (open && goesOn(open, line)) continue;
    open = line.trim() ? begin(line, start) : null;
    if (open) blocks.push(open);
  }
  return blocks.map(finished);
}

function* linesOf(text, position) {
  while (position < text.length) {
    const newline = text.indexOf("\n", position);
    const end = newline < 0 ? text.length : newline;
    yield [position, text.slice(position, end).replace(/\r$/, "")];
    position = end + 1;
  }
}

function begin(line, start) {
  const fence = FENCE.exec(line);
  if (fence) return { kind: "code", start, fence: fence[1], language: fence[2].trim(), lines: [] };
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", start, level: heading[1].length, lines: [heading[2]] };
  const item = ITEM.exec(line);
  if (!item) return { kind: "paragraph", start, lines: [line] };
  return { kind: "item", start, mark: item[1] ?? item[3], number: Number(item[2] ?? 0), indent: 0, lines: [item[4]] };
}

/** Whether a line belongs to the block before it, which then has it. */
function goesOn(block, line) {
  if (block.kind === "code") {
    if (block.closed) return false;
    const end = line.trim();
    block.closed = end.length >= block.fence.length && end === block.fence[0].repeat(end.length);
    if (!block.closed) block.lines.push(line);
    return true;
  }
  if (block.kind === "item") return continuesItem(block, line.replace(/^\t+/, (tabs) => "    ".repeat(tabs.length)));
  if (block.kind === "heading" || !line.trim() || [FENCE, HEADING, ITEM].some((mark) => mark.test(line))) return false;
  block.lines.push(line);
  return true;
}

function continuesItem(block, line) {
  const indent = line.search(/\S/);
  if (indent >= 0 && indent < 2) return false;
  if (indent > 0) block.indent ||= indent;
  block.lines.push(indent < 0 ? "" : line.slice(Math.min(indent, block.indent)));
  return true;
}

function finished({ lines, ...block }) {
  return { ...block, text: lines.join("\n") };
}

/** Put a block at the end of a node; the node that was made for it. */
function show(block, node, depth) {
  if (block.kind === "item") return showItem(block, node, depth);
  const made = { code: codeBlock, heading, paragraph }[block.kind](block);
  node.append(made);
  return made;
}

function showItem(block, node, depth) {
  if (depth >= DEEPEST) {
    const flat = paragraph(block);
    node.append(flat);
    return flat;
  }
  const item = element("li");
  render(block.text, item, depth + 1);
  const before = node.lastElementChild;
  if (before?.dataset.mark === block.mark) {
    before.append(item);
    return item;
  }
  const isNumbered = block.mark === "." || block.mark === ")";
  const list = isNumbered ? element("ol", { start: block.number }, item) : element("ul", {}, item);
  list.dataset.mark = block.mark;
  node.append(list);
  return list;
}

function heading({ level, text }) {
  return inline(text.trim(), element(`h${Math.min(level + 2, 6)}`));
}

function paragraph({ text }) {
  return inline(text.trim(), element("p"));
}

function codeBlock({ language, text }) {
  const copy = button("Copy", null, { className: "quiet", "aria-label": "Copy this code" });
  copy.dataset.copy = "code";
  const bar = element("div", { className: "code-bar" }, element("span", {}, language || "code"), copy);
  const code = element("code");
  code.append(document.createTextNode(text));
  return element("div", { className: "code" }, bar, element("pre", { tabIndex: 0 }, code));
}

/** Put a line of text into a node: code between backticks, bold, italic. */
function inline(text, node) {
  const open = [{ mark: "", node }]; // never more than the four marks that there are
  const searched = new Set(); // lengths of backticks that have no partner any more
  let position = 0;
  const say = (words) => words && open.at(-1).node.append(words);
  MARKS.lastIndex = 0;
  for (let match; (match = MARKS.exec(text)); ) {
    const end = MARKS.lastIndex;
    say(text.slice(position, match.index));
    position = end;
    if (match[0][0] === "\\") say(match[0][1]);
    else if (match[0][0] !== "`") emphasise(match[0], text[match.index - 1] ?? " ", text[end] ?? " ", open);
    else {
      const close = searched.has(match[0].length) ? -1 : closing(text, match[0], end);
      if (close < 0) searched.add(match[0].length);
      say(close < 0 ? match[0] : element("code", {}, codeOf(text.slice(end, close))));
      if (close >= 0) position = close + match[0].length;
    }
    MARKS.lastIndex = position;
  }
  say(text.slice(position));
  while (open.length > 1) giveUp(open);
  return node;
}

/** Open or close bold and italic at a run of stars or underscores between two characters. */
function emphasise(run, before, after, open) {
  const closes = !/\s/.test(before) && !WORD.test(after);
  const opens = !/\s/.test(after) && !WORD.test(before);
  let left = run.length <= 3 ? run : "";
  while (left) {
    const found = closes && open.findLast(({ mark }) => mark && left.startsWith(mark));
    const mark = found ? found.mark : left.slice(0, 2);
    if (!found && (!opens || open.some((one) => one.mark === mark))) break;
    if (found) close(found, open);
    else open.push({ mark, node: document.createDocumentFragment() });
    left = left.slice(mark.length);
  }
  open.at(-1).node.append(run.length <= 3 ? left : run);
}

function close(found, open) {
  while (open.at(-1) !== found) giveUp(open);
  open.pop();
  open.at(-1).node.append(element(found.mark.length === 2 ? "strong" : "em", {}, found.node));
}

/** A mark that nothing closed is text. */
function giveUp(open) {
  const { mark, node } = open.pop();
  open.at(-1).node.append(mark, node);
}

/** Where the next run of exactly so many backticks begins; -1 without one. */
function closing(text, run, from) {
  for (let at = text.indexOf(run, from); at >= 0; ) {
    let end = at;
    while (text[end] === "`") end += 1;
    if (end - at === run.length) return at;
    at = text.indexOf(run, end);
  }
  return -1;
}

function codeOf(text) {
  return text.length > 2 && text.startsWith(" ") && text.endsWith(" ") && text.trim() ? text.slice(1, -1) : text;
}
