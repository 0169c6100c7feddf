"""The pages are an app that can be installed, and open without their server."""

import json
import struct

import pytest
from playwright.sync_api import expect

from chatmill.app.server import assets
from support.chat_page import ask, titles
from support.chromium import chromium, visit
from support.paths import SOURCE
from support.serving import process
from support.tiny import write_model

OFFLINE = SOURCE / "chatmill/app/server/static/offline"


def test_the_icons_have_the_sizes_that_the_manifest_names():
    icons = json.loads((OFFLINE / "app.webmanifest").read_text())["icons"]
    for icon in icons[1:]:
        header = (OFFLINE / icon["src"].rpartition("/")[2]).read_bytes()[:24]
        assert "{}x{}".format(*struct.unpack(">II", header[16:])) == icon["sizes"]


def test_a_worker_has_a_version_that_changes_with_any_file_or_name():
    contents = {"offline/worker.js": b"", "a.js": b"b"}
    others = [contents | {"a.js": b"c"}, contents | {"c.js": b""}, {"offline/worker.js": b"", "b.js": b"b"}]
    assert len({assets._release(one) for one in (contents, *others)}) == 4


@pytest.mark.slow
def test_without_its_server_the_page_opens_says_so_and_shows_saved_chats(tmp_path):
    arguments = ("--model", write_model(tmp_path / "model"), "--max-tokens", "5")
    with (
        chromium() as browser,
        process(*arguments) as (address, server),
        visit(browser, address, refused=True, offline=True) as page,
    ):
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        ask(page, "Are you there?")
        server.terminate()
        server.wait(30)
        page.reload()
        expect(page.locator("#notice")).to_contain_text("The server does not answer")
        expect(page.locator(".question .words")).to_have_text("Are you there?")
        expect(titles(page)).to_have_text("Are you there?")
