from itertools import pairwise

import pytest

from chatmill.conversation.chatml import Record
from chatmill.data_card.sampling import sample_records


def write(file, count):
    file.write_text("".join(Record("chat", str(i), "x" * (i % 7)).to_json() for i in range(count)))
    return file


def test_of_a_small_file_all_records_are_taken(tmp_path):
    assert [int(record.group) for record in sample_records(write(tmp_path / "x", 12), 12)] == list(range(12))


def test_of_a_large_file_records_are_taken_evenly(tmp_path):
    found = [int(record.group) for record in sample_records(write(tmp_path / "x", 5000), 100)]
    assert found[0] == 0 and found == sorted({*found}) and len(found) == 100
    assert all(30 < b - a < 70 for a, b in pairwise(found))


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "x").write_text("{}\n")
    with pytest.raises(ValueError, match="x: near byte 0: not a record"):
        sample_records(tmp_path / "x", 5)
