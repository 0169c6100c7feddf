import re
import subprocess
import sys
import time
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
SOONER = "const later = setTimeout; window.setTimeout = (action, ms) => later(action, ms / 10)"
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


def sort(page, title):
    page.get_by_role("button", name=title, exact=True).click()


def tick(page, *names):
    for name in names:
        page.get_by_role("checkbox", name=f"Tick {name}", exact=True).check()


def wait_for(find):
    """What `find` returns, as soon as that is something."""
    deadline = time.monotonic() + 60
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


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


def test_the_column_that_sorts_says_so(page):
    head = page.get_by_role("columnheader", name="Depth")
    for way in ("ascending", "descending", "ascending"):
        sort(page, "Depth")
        expect(head).to_have_attribute("aria-sort", way)
    sort(page, "Steps")
    expect(head).to_have_attribute("aria-sort", "none")


def test_curves_of_ticked_runs_lie_over_one_another(page):
    tick(page, "main", "second")
    expect(page.locator("#curves polyline")).to_have_count(2)
    assert page.locator("#curves .legend span").all_text_contents() == ["main", "second"]
    assert page.locator("#curves output").all_text_contents() == ["2.500", "2.500"]
    page.get_by_role("checkbox", name="Tick main", exact=True).uncheck()
    expect(page.locator("#curves polyline")).to_have_count(1)


def test_a_curve_tells_its_values_under_the_pointer_and_under_the_keyboard(page):
    tick(page, "main")
    chart = page.get_by_role("slider", name="Training curves by step")
    chart.hover(position={"x": 20, "y": 100})
    expect(page.locator("#curves output")).to_have_text("3.750")
    chart.focus()
    page.keyboard.press("End")
    expect(chart).to_have_attribute("aria-valuetext", "At step 40: main 2.500")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#curves output")).to_have_text("3.750")
    page.get_by_label("Of", exact=True).select_option("training text")
    page.get_by_label("By", exact=True).select_option("tokens")
    page.get_by_role("slider", name="Training curves by tokens").focus()
    page.keyboard.press("Home")
    expect(chart).to_have_count(0)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "At tokens 10,240: main 4.500")


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


def test_ticks_stay_when_the_runs_are_read_anew(page, repository):
    tick(page, "main")
    repository.git("branch", "another", "main~0")
    repository.measure(4.0)
    repository.experiment("latest")
    page.get_by_role("button", name="Refresh").click()
    page.wait_for_selector("text=latest")
    expect(page.get_by_role("checkbox", name="Tick main", exact=True)).to_be_checked()
    expect(page.locator("#curves polyline")).to_have_count(1)


def test_a_run_that_trains_beside_the_workspace_is_followed_until_it_is_done(browser, address, repository, tmp_path):
    wait = f"while ! [ -e {tmp_path}/enough ]; do sleep 0.1; done"
    head = (
        r"mkdir -p data/metrics && printf 'step\tvalidation_bits_per_byte\n10\t4.5\n20\t3.5\n' > data/metrics/train.tsv"
    )
    pipeline = yaml.safe_load((repository.folder / "dvc.yaml").read_text())
    pipeline["stages"]["make"]["cmd"] = f"{head}; {wait}; {pipeline['stages']['make']['cmd']}"
    repository.write("dvc.yaml", yaml.safe_dump(pipeline))
    command = [sys.executable, "-m", "dvc", "exp", "run", "--temp", "--name", "live", "-C", "made"]
    with (
        subprocess.Popen(command, cwd=repository.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run,
        visit(browser, f"{address}/runs", script=SOONER) as page,
    ):
        try:
            curve = wait_for(lambda: next(repository.folder.glob(".dvc/tmp/exps/*/*/data/metrics/train.tsv"), None))
            page.get_by_role("button", name="Refresh").click()
            tick(page, "live (running)")
            row = page.get_by_role("row").filter(has=page.get_by_role("checkbox", name="Tick live (running)"))
            expect(row).to_contain_text("running")
            value = page.locator("#curves output")
            expect(value).to_have_text("3.500")
            expect(page.locator("#chat")).to_be_disabled()
            with curve.open("a") as file:
                file.write("30\t3.25\n")
            expect(value).to_have_text("3.250")
        finally:
            (tmp_path / "enough").touch()
            repository.git("checkout", "-q", "dvc.yaml")
        expect(page.get_by_role("checkbox", name="Tick live", exact=True)).to_be_checked()
        expect(row).to_have_count(0)
        expect(value).to_have_text("2.500")  # the curve that it has in the end
        expect(page.locator("#chat")).to_be_enabled()
    assert run.returncode == 0


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
