"""What axe-core, an npm package, finds wrong on a page."""

import os
from pathlib import Path

import pytest

AXE = next(
    (
        file
        for folder in os.environ.get("NODE_PATH", "").split(os.pathsep)
        if (file := Path(folder, "axe-core/axe.min.js")).is_file()
    ),
    None,
)
FOUND = "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)"

needs_axe = pytest.mark.skipif(AXE is None, reason="npm's axe-core is not in NODE_PATH")


def violations(page):
    """What axe finds: rule, and the first node of each."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return [(found["id"], found["nodes"][0]["html"]) for found in page.evaluate(FOUND)]
