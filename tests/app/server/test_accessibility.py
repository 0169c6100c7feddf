"""axe finds nothing on the pages, in both themes, on a desktop and on a phone."""

import pytest

from support.accessibility import needs_axe, violations
from support.chat_page import ask, last, press, setting
from support.chromium import chromium, visit
from support.run_repository import RunRepository
from support.serving import serving

THEMES, DESKTOP, PHONE = ("light", "dark"), {"width": 1440, "height": 900}, {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.slow,
    needs_axe,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    made = RunRepository(tmp_path_factory.mktemp("runs"))
    made.measure(2.5, tokenizer="byte")
    made.experiment("second")
    with serving("--model", "data/model", "--max-tokens", "20", folder=made.folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_chat(browser, address, theme, viewport):
    with visit(browser, address, color_scheme=theme, viewport=viewport) as page:
        page.wait_for_selector(".empty-chat")
        assert violations(page) == []
        for words in ("Hello", "Again"):
            ask(page, words)
        press(page, "Tokens")
        press(page, "Figures")
        page.wait_for_selector(".tokens")
        if viewport == DESKTOP:  # on a phone, the settings cover the chat
            setting(page, "Temperature").fill("-1")
        assert last(page).locator(".stats").is_visible()
        assert violations(page) == []
        for panel in ("Chats", "Settings") if viewport == PHONE else ():
            press(page, panel)
            assert violations(page) == []
            press(page, "Close")
        page.locator(".chat").first.hover() if viewport == DESKTOP else press(page, "Chats")
        press(page, "Export Hello")
        assert violations(page) == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_runs(browser, address, theme):
    with visit(browser, f"{address}/runs", color_scheme=theme, viewport=DESKTOP) as page:
        page.get_by_role("checkbox", name="Tick second", exact=True).check()
        page.wait_for_selector("#curves polyline")
        assert violations(page) == []
        press(page, "Name and note …")
        assert violations(page) == []
