"""Manifests list the files of a folder, and nothing else is opened for them; files are read up to a limit."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from chatmill.pipeline.manifest import (
    MAX_BYTES,
    check_manifest,
    write_manifest,
)
from support.paths import SOURCE

TEXT = b"some text"
SECRET = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model" / "parts").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_bytes(TEXT)
    (tmp_path / "model" / "parts" / "0").write_bytes(b"")
    write_manifest(tmp_path / "model", kind="model", fingerprint="f")
    return tmp_path / "model"


def change(folder, **changes):
    """Write the manifest with other values."""
    content = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(content))


def test_a_manifest_has_checksums_and_sizes_of_all_files(folder):
    content = json.loads((folder / "manifest.json").read_text())
    assert content["files"] == {"config.json": SECRET, "parts/0": hashlib.sha256(b"").hexdigest()}
    assert content["sizes"] == {"config.json": 9, "parts/0": 0}
    assert check_manifest(folder) == "f"
    assert check_manifest(folder / "parts") is None


def test_a_file_of_another_size_is_not_read(folder):
    os.truncate(folder / "config.json", 1 << 42)  # 4 TiB: reading them would take hours
    with pytest.raises(ValueError, match=r"config\.json is damaged or was edited: recreate the folder"):
        check_manifest(folder)


def plant(folder, name):
    """A FIFO outside the folder, which blocks whoever opens it, and a name that leads there."""
    os.mkfifo(folder.parent / "fifo")
    (folder / "link").symlink_to(folder.parent / "fifo")
    (folder / "folder").symlink_to(folder.parent)
    return name.format(outside=folder.parent)


CHECK = """
import sys
from pathlib import Path
from chatmill.pipeline.manifest import check_manifest
check_manifest(Path(sys.argv[1]))
"""
OUTSIDE = ["../fifo", "{outside}/fifo", "parts/../../fifo", "link", "folder/fifo", "/dev/zero", "/proc/self/pagemap"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs")
@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_the_folder_is_opened(folder, name):
    change(folder, files={plant(folder, name): SECRET}, sizes={})
    command = [sys.executable, "-c", CHECK, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=15)
    assert "expected the name of a file in its folder" in run.stderr or "a file outside its folder" in run.stderr


@pytest.mark.parametrize("name", ["", ".", "./config.json", "parts//0", "parts", "a\nb", "a\0b", "\ud800", "x" * 5000])
def test_a_name_that_is_no_file_of_the_folder_is_refused_in_one_line(folder, name):
    change(folder, files={name: SECRET}, sizes={})
    with pytest.raises(ValueError, match=r"expected the name of a file|is not a regular file|is missing") as error:
        check_manifest(folder)
    assert "\n" not in str(error.value)


def test_links_to_a_cache_of_dvc_are_followed(folder):
    cached = folder.parent / "cache" / "files" / "md5" / "55" / "2e21cd4cd9918678e3c1a0df491bc3"
    cached.parent.mkdir(parents=True)
    (folder / "config.json").rename(cached)
    (folder / "config.json").symlink_to(cached)
    assert check_manifest(folder) == "f"
    cached.write_bytes(b"other")
    with pytest.raises(ValueError, match=r"config\.json is damaged or was edited"):
        check_manifest(folder)


CONTENTS = {
    "huge": '{"format": 1, "fingerprint": "f", "files": {}' + " " * MAX_BYTES + "}",
    "deep": '{"files": ' * 100_000,
    "a list": "[]",
    "a number": "3",
    "a long number": "9" * 5000,
    "files that are a list": '{"format": 1, "fingerprint": "f", "files": [["config.json", ""]]}',
    "sizes that are a list": '{"format": 1, "fingerprint": "f", "files": {}, "sizes": [5]}',
    "no files": '{"format": 1, "fingerprint": "f"}',
    "no text": "\xff\xfe\xfd",
    "nothing": "",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_what_is_no_manifest_is_refused_in_one_line(folder, content):
    (folder / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"manifest\.json: not a manifest: ") as error:
        check_manifest(folder)
    assert "\n" not in str(error.value)


def test_a_manifest_of_another_format_is_refused(folder):
    change(folder, format=2)
    with pytest.raises(ValueError, match=r"manifest\.json: format: expected 1, got 2: recreate the folder"):
        check_manifest(folder)
