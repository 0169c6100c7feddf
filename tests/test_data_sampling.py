from collections import Counter
from itertools import pairwise

import pytest

from chatmill import data_card as sampling
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


@pytest.mark.parametrize("whole", [True, False])
def test_of_a_larger_one_records_are_taken_evenly(tmp_path, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(sampling, "MAX_READ_BYTES", 1000)
    found = groups(sample_records(write(tmp_path / "x", chat=5000), 100))
    assert found[0] == 0 and found == sorted({*found}) and len(found) == 100
    assert all(30 < b - a < 70 for a, b in pairwise(found))


def test_small_sources_are_taken_as_a_whole_and_large_ones_share_the_rest(tmp_path):
    found = sample_records(write(tmp_path / "x", large=900, other=500, small=20), 100)
    assert Counter(record.source for record in found) == {"large": 40, "other": 40, "small": 20}
    assert [record.source for record in found] == sorted(record.source for record in found)


def test_long_records_are_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "MAX_BYTES", 70)
    assert groups(sample_records(write(tmp_path / "x", chat=50), 50)) == list(range(0, 50, 5))


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "x").write_text("{}\n")
    with pytest.raises(ValueError, match="x: near byte 0: not a record"):
        sample_records(tmp_path / "x", 5)
