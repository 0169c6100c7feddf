"""Takes screenshots of the pages in all their states, at three widths and in both themes, with Debian's chromium.

    python tests/support/screenshots.py FOLDER [--project PATH]

PATH is a repository in which `dvc repro` has run (default: this one); its model, its runs and its report are shown. A
file is named for page and state, theme and width: `FOLDER/chat-tokens-dark-390.png`.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import expect

from support.chat_page import ask, press, send
from support.chromium import chromium, visit
from support.paths import ROOT
from support.serving import process

SIZES = ((1440, 900), (1280, 800), (390, 844))
THEMES = ("light", "dark")
MODELS = ("--model", "data/export/onnx", "--model", "data/model")
MARKDOWN = """# A heading

Words with **strong**, *emphasis*, `code` and a [link](https://example.org).

> A quote.

1. One
   - two

| Name | Price |
|:-----|------:|
| Tea  |   2.5 |

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"  # a comment
```
"""
ANSWER = {"role": "assistant", "content": MARKDOWN}
IMPORTED = {"messages": [{"role": "user", "content": "Show me all marks."}, ANSWER]}


class Camera:
    """Takes the pictures of a page, whose file names begin with `name`."""

    def __init__(self, page, folder, look):
        self.page, self.folder, self.look = page, folder, look

    def take(self, state, *, whole=False):
        """Write the picture of a state; `whole` has what is below the window's edge, too."""
        self.page.wait_for_timeout(150)  # for what moves or is drawn in the next frame
        self.page.screenshot(path=self.folder / f"{state}-{self.look}.png", full_page=whole)


def chat(page, camera, address):
    """Each state of the chat page."""
    expect(page.locator(".empty-chat")).to_be_visible()
    camera.take("chat-empty")
    press(page, "What else can I ask?")
    camera.take("chat-prompts")
    ask(page, "What is 48 times 7?")
    camera.take("chat-answer")
    press(page, "Figures")
    press(page, "Tokens")
    expect(page.locator(".tokens")).to_have_count(2)
    page.locator(".tokens").last.locator(".token").last.focus()
    camera.take("chat-tokens")
    page.locator("#import-file").set_input_files(
        {"name": "chat.json", "mimeType": "application/json", "buffer": json_of(IMPORTED)}
    )
    page.wait_for_selector("#notice:not([hidden])")
    camera.take("chat-imported")
    panels(page, camera)
    page.goto(f"{address}/?model=data/export/onnx&beside=data/model")
    ask(page, "How are you?")
    camera.take("chat-beside")
    page.goto(f"{address}/?model=nothing")
    page.wait_for_selector("#notice:not([hidden])")
    camera.take("chat-notice")


def panels(page, camera):
    """The panels and dialogs of the chat page."""
    open_panel(page, "chats")
    page.locator("#chat-list .title", has_text="Show me all marks.").click()
    expect(page.locator(".content table")).to_be_visible()
    close_panel(page, "chats")
    page.locator("#scroller").evaluate("(node) => node.scrollTo(0, 0)")
    camera.take("chat-markdown")
    open_panel(page, "chats")
    camera.take("chat-list")
    close_panel(page, "chats")
    open_panel(page, "settings")
    page.get_by_label("Temperature", exact=True).fill("-1")
    camera.take("chat-settings")
    page.get_by_label("Temperature", exact=True).fill("")
    close_panel(page, "settings")


def open_panel(page, name):
    if page.locator(f"#{name}").is_hidden():
        page.locator(f"#toggle-{name}").click()


def close_panel(page, name):
    """Close a panel that covers the chat, as it does on a phone."""
    if page.locator(f"#{name} .close-panel").is_visible():
        page.locator(f"#{name} .close-panel").click()


def runs(page, camera):
    """The runs page: its table, and what two ticked runs show."""
    page.wait_for_function("document.querySelector('#refresh')?.disabled === false", timeout=120_000)
    camera.take("runs")
    boxes = page.locator("#runs tbody input[type=checkbox]")
    for box in boxes.all()[:2]:
        box.check()
    page.wait_for_timeout(1000)
    camera.take("runs-ticked", whole=True)


def without_server(page, camera, server):
    """The chat page when its server has ended."""
    page.wait_for_selector("#model option", state="attached")
    server.terminate()
    server.wait(60)
    send(page, "Are you there?")
    expect(page.locator(".problem:visible")).to_have_count(1)
    camera.take("chat-error")


def json_of(content):
    return json.dumps(content).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--project", type=Path, default=ROOT, metavar="PATH")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    project = options.project.resolve()
    report = (project / "data/report/index.html").as_uri()
    with chromium() as browser, process(*MODELS, folder=project) as (address, server):
        for theme in THEMES:
            for width, height in SIZES:
                look = {"color_scheme": theme, "viewport": {"width": width, "height": height}, "has_touch": width < 500}
                with visit(browser, address, refused=True, **look) as page:
                    camera = Camera(page, options.folder, f"{theme}-{width}")
                    chat(page, camera, address)
                    page.goto(f"{address}/runs")
                    runs(page, camera)
                    page.goto(report)
                    camera.take("report", whole=True)
        with visit(browser, address, refused=True) as page:
            without_server(page, Camera(page, options.folder, "light-1280"), server)


if __name__ == "__main__":
    main()
