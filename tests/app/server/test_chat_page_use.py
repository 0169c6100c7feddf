"""The chat page over time: saved chats, failing servers, API keys, widths and themes."""

import json
import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from chatmill.datasets.formats.registry import read_dataset
from support.chat_page import ask, captured_request, finished, last, press, setting, titles
from support.chromium import visit
from support.serving import serving
from support.tiny import CONFIG, write_model

pytestmark = pytest.mark.slow

HOSTILE = """<img src=x onerror="document.title='run'"><script>document.title='run'</script>"""
TALK = {"messages": [{"role": "user", "content": f"Ask {HOSTILE}"}, {"role": "assistant", "content": f"Say {HOSTILE}"}]}
SUM = {"role": "user", "content": "2*3?"}
CALL = {"type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2*3"}'}}
SUM_ANSWER = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "6"},
    {"role": "assistant", "content": "It is 6."},
]
OPTIONS = ("--threads", "1", "--max-tokens", "20")
NAMELESS = re.compile(r"- (button|textbox|combobox|link|spinbutton|dialog|checkbox)(?! \")")
CONTRASTS = """() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => parts(color).slice(0, 3).map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (node) => {
        const color = getComputedStyle(node).backgroundColor;
        return parts(color)[3] === 0 ? ground(node.parentElement) : color;
    };
    const nodes = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
        && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
    return nodes.map((node) => {
        const [one, other] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
        return [`${node.localName}.${node.className} ${node.textContent.slice(0, 20)}`, (one + 0.05) / (other + 0.05)];
    });
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights, which hardly ever ends an answer."""
    return write_model(tmp_path_factory.mktemp("model"), replace(CONFIG, max_position_embeddings=1 << 14))


@pytest.fixture(scope="module")
def address(folder):
    with serving("--model", folder, *OPTIONS) as address:
        yield address


@pytest.fixture
def page(browser, address):
    with visit(browser, address) as page:
        yield page


def bring(page, path, *rows):
    """Import rows as a file."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    page.set_input_files("#import-file", path)


def exported(page, opener, path):
    """The conversations that a button downloads, as `prepare` reads them."""
    with page.expect_download() as found:
        page.get_by_role("button", name=opener).first.click()
    found.value.save_as(path)
    return [item.conversation for item in read_dataset(path, "messages", limit=None, seed=0)]


def test_chats_are_kept_listed_and_opened_again(page):
    ask(page, "First")
    shown = page.locator("#exchanges").inner_text()
    press(page, "New chat")
    ask(page, "Second")
    expect(titles(page)).to_have_text(["Second", "First"])
    page.reload()
    expect(titles(page)).to_have_text(["Second", "First"])
    expect(page.locator(".words")).to_have_text("Second")
    titles(page).last.click()
    expect(page.locator(".words")).to_have_text("First")
    expect(page.locator("#exchanges")).to_have_text(shown, use_inner_text=True)
    page.go_back()
    expect(page.locator(".words")).to_have_text("Second")


def test_a_deleted_chat_can_be_brought_back_until_the_notice_is_closed(page):
    ask(page, "First")
    shown = page.locator("#exchanges").inner_text()
    press(page, "Delete First")
    expect(titles(page)).to_have_count(0)
    expect(page.locator("#start")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(["First"])
    expect(page.locator("#exchanges")).to_have_text(shown, use_inner_text=True)
    ask(page, "Second")
    press(page, "Delete First")
    press(page, "Close")
    page.reload()
    expect(page.locator("#start")).to_be_visible()
    expect(titles(page)).to_have_count(0)


def test_what_is_imported_is_exported_and_prepare_reads_it(page, tmp_path):
    call = {"type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2*3"}'}}
    tool = [{"role": "user", "content": "2*3?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tool += [{"role": "tool", "content": "6"}, {"role": "assistant", "content": "It is 6."}]
    bring(page, tmp_path / "in.jsonl", TALK, {"messages": [{"role": "system", "content": "Be kind."}, *tool]})
    expect(page.get_by_role("alert")).to_contain_text("in.jsonl: 2 imported.")
    before = [item.conversation for item in read_dataset(tmp_path / "in.jsonl", "messages", limit=None, seed=0)]
    assert exported(page, "Export all", tmp_path / "all.jsonl") == before
    page.locator(".chat").last.hover()
    assert exported(page, "Export 2*3?", tmp_path / "one.jsonl") == before[1:]


def test_a_server_opens_its_page_with_a_saved_chat_which_goes_on_there(browser, folder, tmp_path):
    file = tmp_path / "two.jsonl"
    file.write_text(f"{json.dumps(TALK)}\n{json.dumps({'messages': [*TALK['messages'], SUM, *SUM_ANSWER]})}\n")
    with serving("--model", folder, "--load", f"{file} 2", *OPTIONS) as address, visit(browser, address) as page:
        expect(page.locator(".words")).to_have_text([f"Ask {HOSTILE}", "2*3?"])
        expect(last(page).locator(".output")).to_contain_text("6")
        ask(page, "Why?")
        for revisit in (page.reload, lambda: page.goto(address)):
            revisit()
            expect(page.locator(".words")).to_have_count(3)
            expect(titles(page)).to_have_count(1)
        page.get_by_role("button", name="New chat").first.click()
        page.reload()
        expect(page.locator("#start")).to_be_visible()


def test_a_key_is_asked_for_until_it_fits_and_kept_for_the_tab(browser, folder):
    with (
        serving("--model", folder, *OPTIONS, CHATMILL_API_KEY="right") as address,
        visit(browser, address, refused=True) as page,
    ):
        for key in ("wrong", "right"):
            expect(page.get_by_role("dialog", name="This server needs an API key")).to_be_visible()
            page.get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")
        ask(page, "Hello")
        page.reload()
        ask(page, "Hello again")
        assert page.evaluate("Object.keys(localStorage).concat(Object.values(localStorage)).includes('right')") is False


def test_everything_is_done_with_the_keyboard(page):
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("link", name="Skip to the message").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert captured_request(page, lambda: page.keyboard.press("Enter"))["messages"][0]["content"] == "one\ntwo"
    finished(page)
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Your message", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit your message")).to_be_focused()


def test_the_tab_key_reaches_every_control_and_shows_where_it_is(page):
    ask(page, "Hello")
    setting(page, "Seed")
    page.locator("#message").focus()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("""() => {
            const node = document.activeElement;
            const { outlineStyle, outlineWidth } = getComputedStyle(node);
            const shown = node === document.body || (outlineStyle !== "none" && outlineWidth !== "0px");
            return shown ? (node.ariaLabel || node.id || node.textContent) : `no outline: ${node.outerHTML}`;
        }""")
        )
    assert not [name for name in reached if name.startswith("no outline")]
    names = page.locator(":is(button, input, select, textarea, a[href]):visible").evaluate_all(
        "nodes => nodes.filter((node) => node.tabIndex >= 0 && !node.disabled)"
        ".map((node) => node.ariaLabel || node.id || node.textContent)"
    )
    assert set(names) <= reached


def test_every_control_has_a_name(page):
    ask(page, "Hello")
    setting(page, "Seed")
    press(page, "Tokens")
    expect(page.locator(".tokens")).to_have_count(2)
    snapshot = page.locator("body").aria_snapshot()
    assert 'button "Send"' in snapshot
    assert NAMELESS.findall(snapshot) == []


@pytest.mark.parametrize("system", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(browser, address, system):
    """WCAG 2.2 requires a contrast of 4.5 for text."""
    with visit(browser, address, color_scheme=system) as page:
        for words in ("Hello", "Again"):
            ask(page, words)
        setting(page, "Seed")
        press(page, "Tokens")
        expect(page.locator(".tokens")).to_have_count(2)
        page.locator(".tokens button").last.focus()
        faint = {name: ratio for name, ratio in page.evaluate(CONTRASTS) if ratio < 4.5}
        assert faint == {}


def test_a_phone_shows_everything_without_scrolling_sideways(browser, address, tmp_path):
    with visit(browser, address, viewport={"width": 360, "height": 640}) as page:
        code = "x" * 300
        answer = {"role": "assistant", "content": f"```\n{code}\n```\n{code} `{code}`\n- {code}\n\n|{code}|b|\n|-|-|\n"}
        bring(page, tmp_path / "in.jsonl", {"messages": [TALK["messages"][0], answer]})
        expect(page.locator(".exchange")).to_have_count(1)
        ask(page, code)
        press(page, "Tokens")
        expect(page.locator(".tokens")).to_have_count(2)
        page.locator(".tokens button").last.focus()
        for opener in (None, "Chats", "Settings"):
            if opener:
                page.get_by_role("button", name=opener).click()
            assert page.evaluate("document.documentElement.scrollWidth") == 360
            boxes = page.locator("body :is(button, select, textarea, input, p, dialog):visible").evaluate_all(
                "nodes => nodes.filter((node) => !node.closest('.unseen')).map((node) => node.getBoundingClientRect())"
            )
            assert all(box["left"] >= 0 and box["right"] <= 360.5 for box in boxes)
            page.keyboard.press("Escape")


def test_a_run_that_is_not_loaded_yet_is_found_by_its_name_and_loaded(browser, git_project):
    with (
        serving("--model", "data/model", *OPTIONS, folder=git_project.folder) as address,
        visit(browser, f"{address}/?model=workspace") as page,
    ):
        expect(page.locator("#model option:checked")).to_have_text("workspace (not loaded)")
        page.evaluate("""() => {
            window.told = [];
            const watcher = new MutationObserver(() => told.push(document.querySelector(".answer .hint").textContent));
            watcher.observe(document.getElementById("exchanges"), { subtree: true, childList: true });
        }""")
        ask(page, "Hello")
        assert page.evaluate("told[0]") == "loading workspace …"
        expect(page.locator("#model option:checked")).to_have_text("workspace")
