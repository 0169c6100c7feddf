"""Debian's chromium, in which pages are tested as users see them."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

PROGRAM = Path("/usr/bin/chromium")
QUIET = ["gpu", "background-networking", "component-update", "sync"]  # features that are disabled
ARGUMENTS = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
TIMEOUT_MS = 60_000  # so long because the machine may be busy


@contextmanager
def chromium():
    """A browser; the test is skipped if none is installed."""
    if not PROGRAM.exists():
        pytest.skip("chromium is not installed")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def visit(browser, address, *, refused=False, script=None, **options):
    """A page in a browser context of its own. Raises AssertionError if its console shows an error or a warning.

    `refused` permits that the server refuses requests; `script` runs before the page's scripts.
    """
    errors = []
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    if script:
        context.add_init_script(script)
    context.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(address)
    if not refused and page.locator("#model").count():
        page.wait_for_selector("#model option", state="attached")  # before that, some controls have no listeners
    yield page
    context.close()
    unexpected = [text for text in errors if not (refused and "Failed to load resource" in text)]
    assert not unexpected, unexpected
