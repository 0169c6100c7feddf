import hashlib
import json

import pytest

from chatmill.pipeline.manifest import check_manifest, write_manifest

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


@pytest.mark.parametrize("name", ["", "parts", "../config.json", "/etc/hostname", "none"])
def test_a_name_that_is_no_file_of_the_folder_is_refused_in_one_line(folder, name):
    change(folder, files={name: SECRET}, sizes={})
    with pytest.raises(ValueError, match=r"expected the name of a file|is missing") as error:
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
