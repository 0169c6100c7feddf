"""Manifests list the files of a folder, and nothing else is opened for them; files are read up to a limit."""

import hashlib
import json
import os
import resource
import subprocess
import sys

import pytest

from chatmill.pipeline.manifest import (
    MAX_BYTES,
    MAX_JSON_VALUES,
    check_manifest,
    read_bounded,
    read_json,
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


def test_many_parts_are_listed(tmp_path):
    folder = tmp_path / ("x" * 250) / ("x" * 250)
    folder.mkdir(parents=True)
    for number in range(2000):
        (folder / f"part-{number:05}").touch()
    write_manifest(tmp_path, kind="tokens", fingerprint="f")
    assert check_manifest(tmp_path) == "f"


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


def test_a_folder_may_be_a_link(folder):
    (folder.parent / "link").symlink_to(folder)
    assert check_manifest(folder.parent / "link") == "f"


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs")
def test_a_manifest_that_is_no_regular_file_is_refused(folder):
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(ValueError, match=r"manifest\.json is not a regular file"):
        check_manifest(folder)


def test_a_file_within_the_limit_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"ä": [1, 2]}')
    assert read_json(tmp_path / "a.json") == {"ä": [1, 2]}
    assert read_bounded(tmp_path / "a.json", 14) == '{"ä": [1, 2]}'.encode()
    with pytest.raises(ValueError, match=r"^over 13 bytes$"):
        read_bounded(tmp_path / "a.json", 13)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such files")
def test_an_endless_file_that_seems_empty_is_refused(tmp_path):
    (tmp_path / "config.json").symlink_to("/proc/self/pagemap")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"^over 1,000 bytes$|^cannot be read: "):
        read_json(tmp_path / "config.json", 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs")
def test_no_regular_file_is_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "fifo", tmp_path / "missing", tmp_path, tmp_path / "zero"):
        with pytest.raises(ValueError, match=r"^not a regular file$"):
            read_json(file)


JSON_CONTENTS = {
    "many values": ("[" + "0," * MAX_JSON_VALUES + "0]", "over 4,194,304 values"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "a long number": ("9" * 5000, "4300"),
    "no text": ("\xff", "not UTF-8 text: byte 0xff at 0"),
    "half": ("{", "column 2"),
}


@pytest.mark.parametrize(("content", "message"), JSON_CONTENTS.values(), ids=JSON_CONTENTS)
def test_what_is_no_json_of_a_common_size_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")
