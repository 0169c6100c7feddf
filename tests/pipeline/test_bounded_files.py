"""Files are read up to a limit, whatever they are."""

import os
import resource
import sys

import pytest

from chatmill.pipeline.bounded_files import MAX_JSON_VALUES, read_bounded, read_json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="FIFOs and /proc are Linux's")


def test_a_file_within_the_limit_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"ä": [1, 2]}')
    assert read_json(tmp_path / "a.json") == {"ä": [1, 2]}
    assert read_bounded(tmp_path / "a.json", 14) == '{"ä": [1, 2]}'.encode()
    with pytest.raises(ValueError, match=r"^over 13 bytes$"):
        read_bounded(tmp_path / "a.json", 13)


def test_an_endless_file_that_seems_empty_is_refused(tmp_path):
    (tmp_path / "config.json").symlink_to("/proc/self/pagemap")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"^over 1,000 bytes$|^cannot be read: "):
        read_json(tmp_path / "config.json", 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "fifo", tmp_path / "missing", tmp_path, tmp_path / "zero"):
        with pytest.raises(ValueError, match=r"^not a regular file$"):
            read_json(file)


CONTENTS = {
    "many values": ("[" + "0," * MAX_JSON_VALUES + "0]", "over 4,194,304 values"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "a long number": ("9" * 5000, "4300"),
    "no text": ("\xff", "decode"),
    "half": ("{", "column 2"),
}


@pytest.mark.parametrize(("content", "message"), CONTENTS.values(), ids=CONTENTS)
def test_what_is_no_json_of_a_common_size_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")
