"""The chat page in a real browser, with a real server and a model that was trained to give these answers."""

import re

import pytest
from playwright.sync_api import expect

from chatmill.conversation import Part
from support.chat_page import answer_text, ask, captured_request, finished, last, press, send, setting
from support.chromium import visit
from support.serving import serving
from support.tiny import write_model
from support.trained import text, write_trained

pytestmark = pytest.mark.slow

HOSTILE = """# Title

<script>document.title = "run"</script><img src=x onerror="document.title = 'run'"> **bold** [here](javascript:alert(1))

- one
  - inner

```js
let a = "<b>";
```
"""
EXCHANGES = {
    "Page": text(HOSTILE),
    "Sum?": [Part("call", "48*7"), Part("output", "336"), Part("text", "It is 336.")],
    "Go on": text("la " * 200),
    "Hello": text("Hello! How are you?"),
}
GOES_ON = re.compile("(la ){30}")
OPTIONS = ("--threads", "1", "--max-tokens", "200")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A trained model, and one with random weights."""
    folder = tmp_path_factory.mktemp("models")
    return write_trained(folder / "trained", EXCHANGES, endless="Go on"), write_model(folder / "random")


@pytest.fixture(scope="module")
def address(models):
    with serving("--model", models[0], "--model", models[1], *OPTIONS) as address:
        yield address


@pytest.fixture
def page(browser, address):
    with visit(browser, address) as page:
        yield page


@pytest.mark.parametrize("stop", ["Stop", "Escape"])
def test_an_answer_streams_until_it_is_stopped_and_what_came_is_kept(page, stop):
    setting(page, "Max tokens").fill("16000")
    send(page, "Go on")
    expect(page.locator(".answer[aria-busy] .content")).to_have_text(GOES_ON)
    page.keyboard.press(stop) if stop == "Escape" else press(page, stop)
    expect(last(page)).to_contain_text("Stopped.")
    expect(last(page).locator(".content")).to_have_text(GOES_ON)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_regenerating_asks_again_in_place_of_the_answer(page):
    setting(page, "Temperature").fill("100")
    setting(page, "Seed").fill("1")
    ask(page, "Hello")
    first = answer_text(page)
    setting(page, "Seed").fill("2")
    request = captured_request(page, lambda: press(page, "Regenerate"))
    assert (len(request["messages"]), request["seed"]) == (1, 2)
    finished(page)
    assert answer_text(page) != first
    assert page.locator(".answer").count() == 1
    second = answer_text(page)
    page.reload()
    expect(last(page)).to_contain_text(second.splitlines()[0])


def test_an_edited_turn_cuts_the_conversation_and_is_asked_again(page):
    ask(page, "Sum?")
    ask(page, "Hello")
    page.get_by_role("button", name="Edit your message").first.click()
    page.get_by_label("Your message", exact=True).fill("Hello")
    request = captured_request(page, lambda: page.keyboard.press("Enter"))
    assert request["messages"] == [{"role": "user", "content": "Hello"}]
    expect(page.locator(".exchange .words")).to_have_text(["Hello"])
    expect(last(page)).to_contain_text("How are you?")


def test_html_that_a_model_says_is_text_and_its_marks_are_nodes(page):
    ask(page, "Page")
    expect(last(page).locator(".content > .text > *")).to_have_text(
        [
            "Title",
            re.compile("^<script>.*</script><img .*> bold \\[here\\]"),
            re.compile("one.*inner"),
            re.compile("<b>"),
        ]
    )
    assert last(page).locator("script, img, a").count() == 0
    assert page.title() == "Page · chatmill"


@pytest.mark.parametrize(("button", "copied"), [("Copy", HOSTILE), ("Copy this code", 'let a = "<b>";')])
def test_answers_and_code_are_copied_as_they_were_written(page, button, copied):
    ask(page, "Page")
    press(page, button)
    expect(page.locator("#announcer")).to_have_text("Copied.")
    page.get_by_label("Message", exact=True).press("Control+V")
    expect(page.get_by_label("Message", exact=True)).to_have_value(copied)


def test_settings_begin_as_the_servers_are_kept_and_reset(page):
    assert (setting(page, "Max tokens").input_value(), setting(page, "Top k").input_value()) == ("200", "0")
    setting(page, "Top k").fill("3")
    page.reload()
    expect(setting(page, "Top k")).to_have_value("3")
    request = captured_request(page, lambda: ask(page, "Hello"))
    assert (request["top_k"], "temperature" in request) == (3, False)
    page.get_by_role("button", name="Reset to").click()
    assert "top_k" not in captured_request(page, lambda: ask(page, "Hello"))


def test_two_models_answer_side_by_side_at_once_and_each_knows_its_own_answers(browser, address, models):
    trained, untrained = models
    with visit(browser, f"{address}/?model={trained}&beside={untrained}") as page:
        setting(page, "Max tokens").fill("500")
        send(page, "Go on")
        expect(page.locator(".answer[aria-busy] .content:not(:empty)")).to_have_count(2)
        expect(page.get_by_role("button", name="Tokens")).to_have_count(2, timeout=60_000)
        requests = []
        page.on("request", lambda request: requests.append(request.post_data_json) if request.post_data else None)
        ask(page, "Hello")
        assert [request["model"] for request in requests[:2]] == [str(trained), str(untrained)]
        first, second = (request["messages"] for request in requests[:2])
        assert first[0] == second[0] and first[1]["content"].startswith("la la") and first[1] != second[1]


def test_a_model_is_chosen_by_name_and_one_that_is_not_there_is_told(browser, address, models):
    with visit(browser, f"{address}/?model=nothing") as page:
        expect(page.get_by_role("alert")).to_contain_text("There is no model nothing here.")
        page.get_by_label("Model", exact=True).select_option(str(models[1]))
        assert captured_request(page, lambda: ask(page, "Hello"))["model"] == str(models[1])


def test_what_the_tool_was_asked_and_answered_stands_in_its_place(page):
    ask(page, "Sum?")
    groups = last(page).locator(".content > *")
    expect(groups).to_have_text(["asked the calculator 48*7", "it answered 336", "It is 336."])
    assert [entry["role"] for entry in captured_request(page, lambda: ask(page, "Hello"))["messages"]] == [
        *("user", "assistant", "tool", "assistant", "user")
    ]


def test_tokens_tell_their_probability_by_hover_and_by_focus(page):
    ask(page, "Sum?")
    press(page, "Tokens")
    lists = last(page).locator(".tokens")
    expect(lists).to_have_count(2)  # of the prompt, and of the answer
    shown = [name.removesuffix("✓") for name in lists.last.locator("button").all_inner_texts()]
    assert "".join(shown) == "<|python_start|>48*7<|python_end|><|output_start|>336<|output_end|>It·is·336.<|im_end|>"
    assert lists.first.locator("button").first.inner_text() == "<|bos|>"
    lists.last.locator("button").nth(1).hover()
    card = page.get_by_role("tooltip")
    expect(card).to_contain_text(re.compile(r"Token\s*4\s*Id\s*52\s*Bytes\s*34\s*Probability\s*\d+\.\d %"))
    expect(card.locator("li")).to_have_count(5)
    lists.last.locator("button").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(card).to_contain_text(re.compile(r"Token\s*\*\s*Id\s*42"))


def test_the_finished_answer_is_announced_and_not_each_token(page):
    setting(page, "Max tokens").fill("16000")
    send(page, "Go on")
    expect(page.locator(".answer[aria-busy] .content")).to_have_text(GOES_ON)
    assert page.locator("#announcer").inner_text() == ""
    assert page.locator(".answer[aria-busy]").locator("xpath=ancestor-or-self::*[@aria-live]").count() == 0
    page.keyboard.press("Escape")
    expect(page.locator("#announcer")).to_have_text(GOES_ON)
