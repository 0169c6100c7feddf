"""How the chat page turns text into nodes, events and conversations, in a real browser."""

import json
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.datasets.formats.registry import read_dataset
from support.chromium import chromium, visit
from support.paths import SOURCE
from support.serving import serving
from support.tiny import write_model

pytestmark = pytest.mark.slow

STATIC = SOURCE / "chatmill/app/server/static"
PIECES = ["a", " ", "\n", "\n\n", "  ", "\t", "*", "**", "_", "`", "```", "```py\n", "~~~\n", "- ", "1. ", "2) ", "# "]
PIECES += ["<b>", "&lt;", "[x](y)", "\\*", "é", "🙂", "\r\n", "> ", "| ", "|", "-", "---", "\n| - | - |\n", "~~", ":"]
PIECES += ["[a](https://e.org)", "https://e.org/a", "![a](https://e.org)", "<https://e.org>", "\r", "=="]
CODE = [
    "<script>",
    "</script>",
    "<img src=x onerror=y>",
    "${",
    "`",
    '"',
    "'",
    "&lt;",
    "//",
    "/*",
    "*/",
    "<?php",
    "if",
    " ",
]
CODE += ["</code>", "</span>", '<span class="x">', "\n", "{", "}", "a", "1", "<!--", "-->", "@", "#", "function f() {"]
KINDS = ("keyword", "string", "number", "name", "type", "comment", "deletion")
TAB = ' target="_blank" rel="noopener noreferrer"'
MARKED = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
NAMES = {*"p h3 h4 h5 h6 ul ol li strong em s code pre div span button".split()}  # noqa: SIM905
NAMES |= {*"blockquote hr a table thead tbody tr th td".split()}  # noqa: SIM905
RENDERED = """async (text) => {
    const { render } = await import("/assets/chat/markdown_view.js");
    const node = document.createElement("div");
    render(text, node);
    return [node.innerHTML, node.textContent];
}"""
SOFAR = """async (text) => {
    const { MarkdownView } = await import("/assets/chat/markdown_view.js");
    const node = document.createElement("div");
    const view = new MarkdownView(node);
    return [...text].map((_, at) => (view.update(text.slice(0, at + 1), false), node.innerHTML));
}"""
GROWN = """async ([text, cuts]) => {
    const { MarkdownView } = await import("/assets/chat/markdown_view.js");
    const node = document.createElement("div");
    const view = new MarkdownView(node);
    for (const cut of cuts) view.update(text.slice(0, cut), cut % 2 === 0);
    view.update(text);
    return node.innerHTML;
}"""
EVENTS = """async ([bytes, cuts]) => {
    const { EventReader } = await import("/assets/shared/events.js");
    return cuts.map((ends) => {
        const reader = new EventReader();
        return ends.flatMap(([start, end]) => reader.push(Uint8Array.from(bytes.slice(start, end))));
    });
}"""
ROUND = """async (text) => {
    const { readLines, toLines } = await import("/assets/chat/training_lines.js");
    return toLines(readLines(text, "chats.jsonl", ["A"]));
}"""
ERROR = """async (text) => {
    const { readLines } = await import("/assets/chat/training_lines.js");
    try { return readLines(text, "chats.jsonl", ["A"]); } catch (error) { return `${error.message}`; }
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"))
    with (
        serving("--model", folder, "--threads", "1") as address,
        chromium() as browser,
        visit(browser, address) as page,
    ):
        yield page


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A\n## B\n###### C", "<h3>A</h3><h4>B</h4><h6>C</h6>"),
        ("**b** *i* __b__ _i_ ***x***", "<p><strong>b</strong> <em>i</em> <strong>b</strong> <em>i</em> "
         "<em><strong>x</strong></em></p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("2*3*4, 2**3, snake_case_name, * a *", "<p>2*3*4, 2**3, snake_case_name, * a *</p>"),
        ("**open and *open", "<p>**open and *open</p>"),
        ("`a*b*` ``c`d`` `e", "<p><code>a*b*</code> <code>c`d</code> `e</p>"),
        (r"\*a\* \`b\` C:\dir", r"<p>*a* `b` C:\dir</p>"),
        ("- a\n- b\n  - c\n    1. d\n- e", "<ul><li><p>a</p></li><li><p>b</p><ul><li>"
         '<p>c</p><ol start="1"><li><p>d</p></li></ol></li></ul></li><li><p>e</p></li></ul>'),
        ("3. a\n4. b\n\ntext", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><p>text</p>'),
        ("<b>x</b> &amp; [a](b) ![i](c)", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp; [a](b) ![i](c)</p>"),
        ("[a *b*](http://b) <https://c.d> mailto:e@f.g https://h.i/j.", f'<p><a href="http://b"{TAB}>a <em>b</em></a> '
         f'<a href="https://c.d"{TAB}>https://c.d</a> <a href="mailto:e@f.g"{TAB}>mailto:e@f.g</a> '
         f'<a href="https://h.i/j"{TAB}>https://h.i/j</a>.</p>'),
        ("![a *b*](https://c/d.png)", f'<p><a href="https://c/d.png"{TAB}>a *b*</a></p>'),
        ("> a\n> - b\n\n---", "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote><hr>"),
        ("| a | b |\n|:-:|--:|\n| *1* | <b> |", '<div class="table" tabindex="0"><table><thead><tr>'
         '<th class="to-center">a</th><th class="to-right">b</th></tr></thead><tbody><tr><td class="to-center">'
         '<em>1</em></td><td class="to-right">&lt;b&gt;</td></tr></tbody></table></div>'),
    ],
)  # fmt: skip
def test_marks_become_nodes_and_all_else_is_text(page, text, nodes):
    assert page.evaluate(RENDERED, text)[0] == nodes


@pytest.mark.parametrize("text", ["```py\na\n  **b**\n```\nc", "~~~ py\na\n  **b**\n~~~\nc"])
def test_code_stands_as_it_was_written(page, text):
    nodes, words = page.evaluate(RENDERED, text)
    assert '<code data-language="py">a\n  **b**</code>' in nodes
    assert words == "pyCopya\n  **b**c"


@settings(max_examples=150)
@given(MARKED, st.data())
def test_a_text_that_grows_becomes_the_same_nodes_wherever_it_is_cut(page, text, data):
    units = len(text.encode("utf-16-le")) // 2
    cuts = sorted(data.draw(st.lists(st.integers(0, units), max_size=8)))
    assert page.evaluate(GROWN, [text, cuts]) == page.evaluate(RENDERED, text)[0]
    assert page.evaluate(GROWN, [text, list(range(units))]) == page.evaluate(RENDERED, text)[0]


@settings(max_examples=150)
@given(MARKED)
def test_no_letter_is_lost_and_only_known_nodes_are_made(page, text):
    nodes, words = page.evaluate(RENDERED, text)
    assert words.count("a") == text.count("a")
    assert set(re.findall(r"<(\w+)", nodes)) <= NAMES


@pytest.mark.parametrize(
    "text", ["*" * 100_000, "**a " * 50_000, "`" * 50_000 + "a", "`a``b" * 20_000, "- " * 20_000, "> # " * 20_000,
             "1. a\n" * 20_000, "```" + " " * 50_000 + "`", "  " * 50_000 + "- a", "_a *b " * 20_000,
             "[" * 100_000, ">" * 100_000, "![" * 50_000, "[a](" * 25_000, "> - " * 25_000 + "a", "*a _b " * 9_000
             + "a_ a* " * 9_000, "|a" * 2_000 + "\n" + "|-" * 2_000 + "\n", "| a |\n|-|\n" + "| a |\n" * 10_000,
             "https://a.b/(" * 8_000, "<a@" * 33_000, "~~a" * 33_000, "a|" * 50_000]
)  # fmt: skip
def test_texts_made_to_take_long_are_drawn(page, text):
    assert page.evaluate(RENDERED, text)[1].count("a") == text.count("a")


def test_pieces_that_come_in_one_frame_are_drawn_once(page):
    drawn = page.evaluate("""async () => {
        const { AnswerView } = await import("/assets/chat/answer.js");
        const { newAnswer, addParts } = await import("/assets/chat/conversation.js");
        const answer = newAnswer("A");
        const view = new AnswerView(answer, {});
        let drawn = 0;
        const watcher = new MutationObserver(() => (drawn += 1));
        watcher.observe(view.node, { subtree: true, childList: true, characterData: true });
        for (let piece = 0; piece < 1000; piece += 1) {
            addParts(answer.parts, [{ kind: "text", text: `${piece} ` }]);
            view.changed();
            await null;
        }
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return [drawn, view.node.textContent.includes("998 999")];
    }""")
    assert drawn == [1, True]


def test_events_are_read_wherever_their_bytes_are_cut(page):
    events = [": hello\r\n", 'data: {"a": "é🙂"}\n', "data:two\r\ndata: lines\r\n\r", "id: 4\ndata: [DONE]\r\r"]
    stream = "\n".join(events).encode()
    whole = [(0, len(stream))]
    cuts = [whole, [(i, i + 1) for i in range(len(stream))], *([(0, i), (i, len(stream))] for i in range(len(stream)))]
    ends = sorted(random.Random(0).sample(range(len(stream)), 9))
    cuts.append(list(pairwise([0, *ends, len(stream)])))
    found = page.evaluate(EVENTS, [list(stream + b"\n"), [[*parts, (len(stream), len(stream) + 1)] for parts in cuts]])
    assert found == [['{"a": "é🙂"}', "two\nlines", "[DONE]"]] * len(cuts)


TALK = [
    {"messages": [{"role": "system", "content": "Be <b>."}, {"role": "user", "content": " 48*7?\n<|im_end|>"},
                  {"role": "assistant", "content": "I ask: "},
                  {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
                      "name": "calculator", "arguments": '{"expression":"48*7"}'}}]},
                  {"role": "tool", "content": "336"}, {"role": "assistant", "content": "336."},
                  {"role": "user", "content": "é🙂"}, {"role": "assistant", "content": "\u2028"  + "ok"}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
]  # fmt: skip


def test_lines_of_the_training_format_come_back_as_they_were_and_prepare_reads_them(page, tmp_path):
    lines = "".join(f"{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}\n" for row in TALK)
    written = page.evaluate(ROUND, lines)
    (tmp_path / "before.jsonl").write_text(lines)
    (tmp_path / "after.jsonl").write_text(written)
    files = (tmp_path / "before.jsonl", tmp_path / "after.jsonl")
    before, after = ([one.conversation for one in read_dataset(file, "messages", limit=None, seed=0)] for file in files)
    assert before == after
    assert [part.kind for part in after[0][2].parts] == ["text", "call", "output", "text"]


HI = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expected property name"),
        ("[]", 'expected an object with a list of "messages"'),
        ('{"messages": [{"role": "user", "content": "x"}]}', "expected a message of the user and one of"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', 'unknown role "robot": expected one of system, user,'),
        ('{"messages": [{"content": "x"}]}', "unknown role (none)"),
        ('{"messages": [null]}', "unknown role (none)"),
        ('{"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]}', "roles out of"),
        ('{"messages": [{"role": "user", "content": 5}]}', "content: expected a text"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]}', "a tool's output"),
        ('{"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}]}', "is empty"),
        (r'{"messages": [{"role": "user", "content": "\ud800"}]}', "half of a surrogate pair"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_conversation_is_told_with_its_place(page, line, reason):
    assert page.evaluate(ERROR, f"{HI}\n{line}\n{HI}").startswith("chats.jsonl:3: ")
    assert reason in page.evaluate(ERROR, f"{HI}\n{line}\n{HI}")


LINKS = ["javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:alert(1)", "java&#x73;cript:alert(1)",
         "javascript&colon;alert(1)", "java\\script:alert(1)", "\x01javascript:alert(1)", "data:text/html,<script>",
         "vbscript:x", "data:image/svg+xml,<svg onload=alert(1)>", "file:///etc/passwd", "blob:null/1", "//e.org",
         "/runs", "about:blank", "chrome://settings", "%6aavascript:alert(1)", "https:e.org",
         "ftp://e.org"]  # fmt: skip


@pytest.mark.parametrize("address", LINKS)
def test_links_lead_to_web_and_mail_addresses_alone(page, address):
    marks = ("[a]({})", "[a](<{}>)", "<{}>", "![a]({})", "[a][b]\n\n[b]: {}")
    for text in (mark.format(address) for mark in marks):
        nodes, words = page.evaluate(RENDERED, text)
        assert not re.findall("<(?!/?p>)", nodes), nodes
        assert words.count("a") >= text.count("a") - address.count("a")


def test_a_link_cannot_write_attributes(page):
    nodes, _ = page.evaluate(RENDERED, """[a](https://e.org/"onclick="x 'b" onclick="c"') [d](https://e.org/"><img>)""")
    shown = page.evaluate("""(nodes) => {
        const body = new DOMParser().parseFromString(nodes, "text/html").body;
        return [...body.querySelectorAll("*")].map((node) => [node.localName, node.getAttributeNames()]);
    }""", nodes)  # fmt: skip
    assert {name for name, _ in shown} <= {"p", "a"}
    assert {one for _, names in shown for one in names} <= {"href", "target", "rel", "title"}


def test_nothing_is_loaded_for_an_image_and_no_style_is_set(page):
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    text = "![a](https://e.org/i.png)\n\n| a |\n|--:|\n| ![b](http://e.org/j.png) |"
    nodes = page.evaluate("""async (text) => {
        const { render } = await import("/assets/chat/markdown_view.js");
        const node = document.body.appendChild(document.createElement("div"));
        render(text, node);
        await new Promise((done) => setTimeout(done, 100));
        return node.outerHTML;
    }""", text)  # fmt: skip
    assert "<img" not in nodes and "style" not in nodes
    assert not [url for url in requests if "e.org" in url]


def test_a_growing_table_is_one_from_its_first_row(page):
    bar, blank, *more = page.evaluate(SOFAR, "| a | b |\n|:--|---|\n| 1 | 2 |\n")
    assert bar == blank == ""
    for nodes in more:
        assert nodes.startswith('<div class="table"')
        assert "|" not in nodes and "-" not in re.sub("<[^>]*>", "", nodes)


def test_growing_code_never_shows_its_fences(page):
    for nodes in page.evaluate(SOFAR, "```py\na = `b`\n```\n\n~~~\nc\n~~~"):
        assert "``" not in nodes and "~" not in nodes


def test_code_that_grows_is_coloured_when_it_has_ended(page):
    end = '<code data-language="js"><span class="code-keyword">if</span></code>'
    *growing, ended = page.evaluate(SOFAR, "```js\nif\n```\n\na")
    assert end in ended and not any("<span class" in nodes for nodes in growing)
    assert end in page.evaluate(RENDERED, "```js\nif")[0]


@settings(max_examples=60)
@given(st.sampled_from(["js", "html", "php", "css", "python", "x"]), st.lists(st.sampled_from(CODE)).map("".join))
def test_coloured_code_has_its_text_and_no_other_nodes(page, language, code):
    nodes, words = page.evaluate(RENDERED, f"~~~{language}\n{code}\n~~~")
    assert words == f"{language}Copy{code}"
    assert set(re.findall("<(?!/)[^>]*>", nodes.partition("<code")[2])) <= {
        f'<span class="code-{kind}">' for kind in KINDS
    }


def test_what_grows_is_changed_in_place(page):
    kept = page.evaluate("""async ([text, more]) => {
        const { MarkdownView } = await import("/assets/chat/markdown_view.js");
        const node = document.createElement("div");
        const view = new MarkdownView(node);
        view.update(text, false);
        const before = [...node.querySelectorAll("*")];
        view.update(text + more, false);
        return before.every((one) => node.contains(one));
    }""", ["> a\n\n| a |\n|---|\n| b |", " c |\n| d |\n"])  # fmt: skip
    assert kept


def test_no_script_of_the_page_can_make_nodes_of_html():
    files = [file for file in STATIC.rglob("*.js") if "vendor" not in file.parts]
    source = "".join(file.read_text() for file in files)
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "setHTML", "document.write", "DOMParser", "eval(")
    assert len(files) > 30 and [way for way in ways if way in source] == []
