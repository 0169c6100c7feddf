from collections import Counter

import pytest

from chatmill.conversation import Record
from chatmill.data_card import sample_records


def write(file, **counts):
    records = [(source, str(number)) for source, count in counts.items() for number in range(count)]
    file.write_text("".join(Record(source, group, "x" * 7).to_json() for source, group in records))
    return file


def groups(records):
    return [int(record.group) for record in records]


def test_of_a_small_file_all_records_are_taken(tmp_path):
    assert groups(sample_records(write(tmp_path / "x", chat=12), 12)) == list(range(12))


def test_small_sources_are_taken_as_a_whole_and_large_ones_share_the_rest(tmp_path):
    found = sample_records(write(tmp_path / "x", large=900, other=500, small=20), 100)
    assert Counter(record.source for record in found) == {"large": 40, "other": 40, "small": 20}
    assert [record.source for record in found] == sorted(record.source for record in found)


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "x").write_text("{}\n")
    with pytest.raises(ValueError, match="x: near byte 0: not a record"):
        sample_records(tmp_path / "x", 5)
