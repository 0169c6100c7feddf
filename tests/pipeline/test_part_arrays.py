import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.pipeline import part_arrays
from chatmill.pipeline.part_arrays import ArrayWriter, PartedArray, open_array
from chatmill.pipeline.parts import PART_LIST


def write(file, chunks, part_length, dtype=np.uint16):
    with ArrayWriter(file, dtype, part_length) as out:
        for chunk in chunks:
            out.append(np.asarray(chunk))
    return open_array(file)


@given(st.lists(st.lists(st.integers(0, 9), max_size=20), max_size=6), st.integers(1, 30), st.data())
def test_what_is_read_is_what_was_written(tmp_path_factory, chunks, part_length, data):
    expected = np.concatenate([*chunks, []]).astype(np.uint16)
    array = write(tmp_path_factory.mktemp("array") / "x.npy", chunks, part_length)
    assert isinstance(array, PartedArray) == (len(expected) > part_length)
    assert (len(array), array.dtype) == (len(expected), np.uint16)
    place = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
    steps = st.none() | st.integers(-3, 3).filter(bool)
    key = slice(data.draw(place), data.draw(place), data.draw(steps))
    np.testing.assert_array_equal(array[key], expected[key])
    if len(expected):
        places = np.array(data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), min_size=1)))
        np.testing.assert_array_equal(array[places], expected[places])
        assert array[int(places[0])] == expected[places[0]]
    np.testing.assert_array_equal(array[expected > 4], expected[expected > 4])
    np.testing.assert_array_equal(np.asarray(array), expected)


def test_no_place_outside_is_read(tmp_path):
    with pytest.raises(IndexError):
        write(tmp_path / "x.npy", [range(9)], 4)[9]


def test_each_part_is_an_array_that_numpy_reads(tmp_path):
    array = write(tmp_path / "x.npy", [range(9)], 4)
    assert [np.load(tmp_path / "x.npy" / part.name).tolist() for part in array.parts] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8],
    ]
    assert [part.records for part in array.parts] == [4, 4, 1]


@pytest.mark.parametrize(("number", "records"), [(0, 0), (0, 5), (1, 3), (2, 5), (2, 0)])
def test_a_list_of_parts_of_other_lengths_is_refused(tmp_path, number, records):
    write(tmp_path / "x.npy", [range(9)], 4)
    file = tmp_path / "x.npy" / PART_LIST
    content = json.loads(file.read_text())
    content["parts"][number]["records"] = records
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"parts\.json: its parts have different lengths: run"):
        open_array(tmp_path / "x.npy")


@pytest.mark.parametrize(("old", "new"), [(b"\x93NUMPY", b"another"), (b"<u2", b"|O "), (b"(4,)", b"(3,)")])
def test_a_part_that_is_another_file_is_named(tmp_path, old, new):
    array = write(tmp_path / "x.npy", [range(9)], 4)
    part = tmp_path / "x.npy" / array.parts[1].name
    part.write_bytes(part.read_bytes().replace(old, new[: len(old)]))
    with pytest.raises(ValueError, match=f"{part} is damaged or was edited: run"):
        array[5]


def test_few_parts_are_mapped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(part_arrays, "_OPEN_PARTS", 2)
    array = write(tmp_path / "x.npy", [range(90)], 10)
    assert array[np.arange(89, -1, -1)].tolist() == list(range(89, -1, -1))
    assert len(array._mapped) == 2


def test_an_array_in_a_store_is_read_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHATMILL_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("CHATMILL_STORE_CACHE_GB", "3e-7")  # of two parts
    array = write(tmp_path / "x.npy", [range(90)], 10)
    assert [file.name for file in (tmp_path / "x.npy").iterdir()] == ["parts.json"]
    assert array[:].tolist() == list(range(90))
    assert len(list((tmp_path / ".cache/parts").iterdir())) == 2
    assert array[5:85].tolist() == list(range(5, 85))
