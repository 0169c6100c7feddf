"""The libraries of the pages are the files that their authors published, and they are small."""

import hashlib
import io
import re
import zipfile

from support.paths import SOURCE

VENDOR = SOURCE / "chatmill/app/server/static/vendor"
MAX_BYTES = 100_000  # of all of them, zipped
OURS = {"README.md", "markdown-it.bundled.LICENSES", "markdown-it.esm.min.d.mts"}


def listed():
    """The SHA-256 of each file of the table in the README."""
    return dict(re.findall(r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.M))


def test_each_library_has_the_sum_that_is_listed():
    assert {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in listed()} == listed()


def test_every_file_of_others_is_listed():
    assert {file.name for file in VENDOR.iterdir()} - OURS == set(listed())


def test_the_library_names_the_version_that_is_listed():
    version = re.search(r"^/\*! markdown-it (\S+) ", (VENDOR / "markdown-it.esm.min.mjs").read_text(), re.M)[1]
    assert re.search(rf"^\| `markdown-it.esm.min.mjs` .*\| {version} \|", (VENDOR / "README.md").read_text(), re.M)


def test_all_libraries_are_small_together():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in VENDOR.iterdir():
            archive.write(file, file.name)
    assert len(packed.getvalue()) <= MAX_BYTES
