"""Takes the README's pictures of the chat page and the report with Debian's chromium.

    python tests/benchmarks/pictures.py [--folder PATH]

PATH is a repository in which `dvc repro` has run (default: this one); its model and its report are shown. The pictures
are written to `.github/images`. Answers are greedy, so their text is always the same, but their speed is not.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import expect

from support.chat_page import ask, press
from support.chromium import chromium, visit
from support.paths import ROOT
from support.serving import serving

IMAGES = ROOT / ".github/images"
WIDTH, HEIGHT = 1000, 860  # CSS pixels, enough for the complete chat
LOOK = {"viewport": {"width": WIDTH, "height": HEIGHT}, "device_scale_factor": 2, "color_scheme": "light"}
EARLIER = ["Good morning!", "Spell garden.", "I like music."]  # other chats in the list
FIRST, SECOND = "hello there", "What is 48 times 7?"
MARGIN = 12  # pixels above a section's rule


def chat(page):
    """Hold the chats; the last one stays open and shows the tokens of its first answer."""
    for words in EARLIER:
        ask(page, words)
        press(page, "New chat")
    ask(page, FIRST)
    press(page, "Tokens")
    expect(page.locator(".tokens")).to_have_count(2)
    ask(page, SECOND)
    page.locator(".tokens").last.locator(".token:not(.p0)").last.hover()  # a token with a low probability
    expect(page.locator("#token-card")).to_be_visible()


def excerpt(page, section, chart):
    """The rectangle of the report from a section to a chart."""
    edges = page.get_by_role("heading", name=section, exact=True, level=2), page.locator("figcaption", has_text=chart)
    top, bottom = (edge.first.bounding_box()["y"] - MARGIN for edge in edges)
    return {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT)
    folder = parser.parse_args().folder.resolve()
    report = (folder / "data/report/index.html").as_uri()
    with chromium() as browser:
        with serving(folder=folder) as address, visit(browser, address, **LOOK) as page:
            chat(page)
            page.screenshot(path=IMAGES / "chat.png")
        with visit(browser, report, **LOOK) as page:
            part = excerpt(page, "Bits per byte of held-out text", "Validation by source")
            page.screenshot(path=IMAGES / "report.png", full_page=True, clip=part)


if __name__ == "__main__":
    main()
