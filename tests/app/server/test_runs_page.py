import re
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from playwright.sync_api import expect

from chatmill.conversation import Message, Record, render
from support.chromium import visit
from support.run_repository import PARAMS, RunRepository
from support.serving import serving

pytestmark = pytest.mark.slow
HOSTILE = "<img/src=x/onerror=alert(1)>"
LABELS = ["workspace", "forgotten", HOSTILE, "tenth", "second", "main"]
UNNAMED = """() => [...document.querySelectorAll("a, button, select, input, [tabindex='0']")].filter((node) =>
    !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim() && node.tagName !== "SELECT"))
    .map((node) => node.outerHTML)"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A branch, and experiments, one of which has no model and no curve."""
    made = RunRepository(tmp_path_factory.mktemp("runs"))
    made.measure(2.5, tokenizer="byte", milliseconds=0.125, skills=0.75, skills_held_back=None)
    made.experiment("second")
    made.measure(10.25, tokenizer="char", milliseconds=0.375, skills=0.125, skills_held_back=None)
    made.store("data/chat/test.jsonl", line("Where is my parcel?") + line("Is it late?"))
    made.experiment("tenth")
    made.measure(1.0)
    made.branch(HOSTILE)
    made.measure(3.5, tokenizer="char", depth=5)
    (made.folder / "dvc.lock").unlink()
    made.experiment("forgotten")
    made.measure(0.75)
    made.write("data/metrics/summary.json", "{}")
    (made.folder / "data/chat").mkdir()
    made.write("data/chat/test.jsonl", "".join(line("Who are you?", str(i)) for i in range(25)))
    return made


def line(question, group="0"):
    """A line of a test set."""
    talk = [Message.from_text("user", question), Message.from_text("assistant", "I am a mill.")]
    return Record("talk", f"talk/{group}", render(talk)).to_json()


@pytest.fixture(scope="module")
def address(repository):
    with serving("--model", "data/model", folder=repository.folder) as found:
        yield found


@pytest.fixture
def page(browser, address):
    with visit(browser, f"{address}/runs") as found:
        found.wait_for_selector("tbody tr")
        yield found


def labels(page):
    return page.locator("tbody .name").all_text_contents()


def tick(page, *names):
    for name in names:
        page.get_by_role("checkbox", name=f"Tick {name}", exact=True).check()


def tab_to(page, node):
    """Press Tab until a control has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if node.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError("Tab does not reach it")


def test_every_run_is_a_row_of_its_figures(page):
    assert sorted(labels(page)) == sorted(LABELS) and labels(page)[0] == "workspace"
    row = page.get_by_role("row").filter(has=page.get_by_role("checkbox", name="Tick second", exact=True))
    cells = [text.split("\n")[0] for text in row.locator("td").all_inner_texts()][2:]
    assert cells[:5] == ["byte", "320", "2", "35,040", "40"]
    assert cells[5:] == ["2.500", "1.500", "★ 75.0 %", "–", "6.3 %", "3.00", "★ 0.125", "7.50"]


def test_curves_of_ticked_runs_lie_over_one_another(page):
    tick(page, "main", "second")
    expect(page.locator("#curves polyline")).to_have_count(2)
    assert page.locator("#curves .legend span").all_text_contents() == ["main", "second"]
    assert page.locator("#curves output").all_text_contents() == ["2.500", "2.500"]
    page.get_by_role("checkbox", name="Tick main", exact=True).uncheck()
    expect(page.locator("#curves polyline")).to_have_count(1)


def test_a_run_without_a_curve_or_a_model_says_so(page):
    tick(page, "forgotten")
    expect(page.locator("#curves")).to_contain_text(
        "forgotten: the training curve is missing on this machine, or has no values yet."
    )
    expect(page.locator("#ticked")).to_contain_text("The model of forgotten is not on this machine")
    expect(page.locator("#chat")).to_be_disabled()


def test_a_verdict_on_two_ticked_runs_is_told_with_its_page(page):
    ask = page.get_by_role("button", name="Which is better?")
    tick(page, "main")
    expect(ask).to_be_disabled()
    tick(page, "second")
    expect(page.locator("#verdict code")).to_have_text("chatmill compare main second --data data/chat/test.jsonl")
    ask.click()
    expect(page.locator(".verdict")).to_contain_text("bits: no clear difference (+0.0 %")
    expect(page.locator("#verdict li")).to_have_text(["A: main", "B: second"])
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="The conversations on which they differ most").click()
    expect(opened.value.locator("h1")).to_have_text("Verdict")
    page.get_by_role("button", name="Untick all").click()
    expect(ask).to_be_disabled()


def test_runs_of_other_seeds_are_ticked_by_a_button(browser, tmp_path):
    made = RunRepository(tmp_path)
    for name, depth, seed in (("a1", 5, 1), ("a2", 5, 2), ("a3", 5, 3), ("b1", 4, 1)):
        training = PARAMS["train_model"] | {"depth": depth, "seed": seed}
        made.write("params.yaml", yaml.safe_dump(PARAMS | {"train_model": training}))
        made.experiment(name)
    with serving("--model", "data/model", folder=tmp_path) as address, visit(browser, f"{address}/runs") as page:
        tick(page, "b1", "a2")
        page.get_by_role("button", name="Tick their 2 other seeds").click()
        for name in ("a1", "a2", "a3", "b1"):
            expect(page.get_by_role("checkbox", name=f"Tick {name}", exact=True)).to_be_checked()
        expect(page.get_by_role("button", name=re.compile("other seed"))).to_be_hidden()


def test_two_ticked_runs_open_side_by_side_in_chat(page):
    tick(page, HOSTILE, "second")
    page.get_by_role("button", name="Chat side by side").click()
    page.wait_for_url(re.compile(r"/\?"))
    assert parse_qs(urlsplit(page.url).query) == {"model": [HOSTILE], "beside": ["second"]}
    expect(page.locator("#beside")).to_have_value("second")


def test_all_is_done_with_the_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the table"
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Bits per byte", exact=True))
    page.keyboard.press("Enter")
    assert labels(page)[0] == HOSTILE
    for name in (HOSTILE, "main"):
        tab_to(page, page.get_by_role("checkbox", name=f"Tick {name}", exact=True))
        page.keyboard.press("Space")
    tab_to(page, page.get_by_role("slider", name="Training curves by step"))
    tab_to(page, page.get_by_role("button", name="Chat side by side"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/\?model=.*&beside=main$"))


def test_names_are_text_wherever_they_are_shown(page):
    tick(page, HOSTILE)
    expect(page.locator("#curves .legend span")).to_have_text(HOSTILE)
    assert page.locator("img").count() == 0 and HOSTILE in labels(page)


def test_every_control_has_a_name(page):
    tick(page, "main")
    page.wait_for_selector("#curves polyline")
    assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_is_never_wider_than_the_screen(browser, address, width):
    with visit(browser, f"{address}/runs", viewport={"width": width, "height": 740}) as page:
        page.wait_for_selector("tbody tr")
        tick(page, "main")
        page.wait_for_selector("#curves polyline")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        scrolls = page.evaluate("(node => node.scrollWidth > node.clientWidth)(document.getElementById('runs'))")
        assert scrolls == (width == 360)


def test_a_folder_without_runs_says_why(browser, repository, tmp_path):
    model = repository.folder / "data/model"
    with serving("--model", model, folder=tmp_path) as address, visit(browser, f"{address}/runs") as page:
        expect(page.get_by_role("alert")).to_contain_text("not inside of a DVC repository")


def test_a_server_that_wants_a_key_is_given_it(browser, repository):
    guarded = serving("--model", "data/model", folder=repository.folder, CHATMILL_API_KEY="secret")
    password = {"username": "any", "password": "secret"}  # that is typed where the report opens
    with guarded as address, visit(browser, f"{address}/runs", refused=True, http_credentials=password) as page:
        page.get_by_role("textbox", name="Key").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr").first).to_be_visible()
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Report of second").click()
        expect(opened.value.locator("h1")).to_have_text("A report")


def test_a_server_that_is_gone_is_told(browser, repository):
    with serving("--model", "data/model", folder=repository.folder) as address:
        visited = visit(browser, f"{address}/runs", refused=True)
        page = visited.__enter__()
        page.wait_for_selector("tbody tr")
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer")
    assert page.locator("tbody tr").count() > 0
    visited.__exit__(None, None, None)
