import os
import sys
import time

import pytest

from chatmill.app import cli
from support.serving import serving
from support.tiny import write_model


@pytest.mark.slow
def test_the_page_is_opened_in_a_browser_once_the_server_listens(tmp_path):
    write_model(tmp_path / "model")
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\n"
        f"page = urllib.request.urlopen(sys.argv[1]).read()\nopen({str(seen)!r}, 'wb').write(page)\n"
    )
    browser.chmod(0o755)
    with serving("--model", "model", "--open", folder=tmp_path, BROWSER=str(browser)):
        for _ in range(300):
            if seen.exists() and seen.read_text():
                break
            time.sleep(0.1)
    assert "<title>Chat · chatmill</title>" in seen.read_text()


@pytest.mark.slow
def test_where_there_is_no_browser_that_is_told(tmp_path):
    write_model(tmp_path / "model")
    nothing = {"BROWSER": "", "PATH": os.path.dirname(sys.executable), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with serving("--model", "model", "--open", folder=tmp_path, **nothing) as address:
        assert address.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("content", [None, "", "{}", '{"messages": [{"role": "user", "content": "Hi"}]}'])
def test_a_chat_that_cannot_be_loaded_is_told_as_in_the_terminal(content, tmp_path, capsys):
    file = tmp_path / "chat.jsonl"
    if content is not None:
        file.write_text(content)
    told = []
    for command in (["serve"], ["chat", "-p", "Hi"]):
        assert cli.main([*command, "--model", str(tmp_path / "model"), "--load", str(file)]) == 1
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    assert told[0].startswith(f"chatmill: {file}") and "load a chat that /save or --output wrote" in told[0]
