"""Takes the README's pictures of the chat page and the report's first screen with Debian's chromium.

    python tests/benchmarks/pictures.py [--folder PATH]

PATH is a repository in which `dvc repro` has run (default: this one); its model and its report are shown. The pictures
are written to `.github/images`. Answers are greedy, so their text is always the same, but their speed is not.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.chat_page import ask
from support.chromium import chromium, visit
from support.paths import ROOT
from support.serving import serving

IMAGES = ROOT / ".github/images"
WIDTH, HEIGHT = 1000, 850  # CSS pixels
LOOK = {"viewport": {"width": WIDTH, "height": HEIGHT}, "device_scale_factor": 2, "color_scheme": "light"}
CHAT = ["hello, I'm Declan", "how many sacks are 48 times 7?", "do you remember my name?"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT)
    folder = parser.parse_args().folder.resolve()
    report = (folder / "data/report/index.html").as_uri()
    with chromium() as browser:
        with serving(folder=folder) as address, visit(browser, address, **LOOK) as page:
            for words in CHAT:
                ask(page, words)
            page.screenshot(path=IMAGES / "chat.png")
        with visit(browser, report, **LOOK) as page:
            page.screenshot(path=IMAGES / "report.png")


if __name__ == "__main__":
    main()
