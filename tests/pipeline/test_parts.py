import json
import resource
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.pipeline import store as stores
from chatmill.pipeline.parts import (
    PART_LIST,
    PartsWriter,
    check_parts,
    open_parts,
    read_parts,
    size_of,
)
from chatmill.pipeline.store import Store
from support.s3 import s3_server

LINES = [f"{i} {'x' * (i % 7)}\n".encode() for i in range(40)]


def write(file, pieces, part_bytes):
    with PartsWriter(file, part_bytes) as out:
        for piece in pieces:
            out.write(piece)
    return file


@pytest.fixture
def parts(tmp_path):
    return write(tmp_path / "chats.jsonl", LINES, 50)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store in a folder, and a working folder of one's own."""
    monkeypatch.setenv("CHATMILL_STORE", f"file://{tmp_path}/store")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@given(st.lists(st.binary(max_size=9)), st.integers(1, 40), st.integers(1, 9))
def test_parts_hold_the_lines_that_begin_in_their_share_of_the_bytes(tmp_path_factory, lines, part_bytes, step):
    folder = tmp_path_factory.mktemp("parts")
    lines = [line.replace(b"\n", b"") + b"\n" for line in lines]
    data = b"".join(lines)
    file = write(folder / "file", (data[i : i + step] for i in range(0, len(data), step)), part_bytes)
    assert open_parts(file).read() == data
    assert size_of(file) == len(data)
    by_share = {}
    for i, line in enumerate(lines):
        by_share.setdefault(len(b"".join(lines[:i])) // part_bytes, []).append(line)
    expected = [b"".join(share) for share in by_share.values()]
    found = [file / part.name for part in read_parts(file)] if file.is_dir() else [file]
    assert [part.read_bytes() for part in found] == (expected or [b""])


def test_a_small_file_is_a_file(tmp_path):
    assert write(tmp_path / "file", LINES, sys.maxsize).read_bytes() == b"".join(LINES)


def test_one_can_go_to_any_byte(parts):
    data = b"".join(LINES)
    with open_parts(parts) as stream:
        for place in (0, 49, 50, 51, 200, 7, len(data) - 1, len(data)):
            assert stream.seek(place) == place
            assert stream.readline() == data[place:].partition(b"\n")[0] + b"\n" * (place < len(data))
        assert stream.seek(0, 2) == len(data)


def test_the_list_says_what_is_in_each_part(parts):
    listed = read_parts(parts)
    assert sum(part.records for part in listed) == len(LINES)
    assert [part.bytes for part in listed] == [(parts / part.name).stat().st_size for part in listed]


def test_a_damaged_part_is_named(parts):
    check_parts(parts)
    part = parts / "part-00001"
    part.write_bytes(part.read_bytes()[::-1])
    with pytest.raises(ValueError, match=f"{part} is damaged"):
        check_parts(parts)


@pytest.mark.parametrize(
    "change", ["{", '{"format": 2, "parts": []}', '{"format": 1, "parts": [{"name": "../x"}]}', "[" * 100_000]
)
def test_another_list_is_refused(parts, change):
    (parts / PART_LIST).write_text(change)
    with pytest.raises(ValueError, match=r"parts\.json: not a list of parts: run `chatmill repair`"):
        read_parts(parts)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../secret"},
        {"sha256": "../../secret"},
        {"sha256": 5},
        {"bytes": -50},
        {"bytes": True},
        {"bytes": 1.5},
        {"bytes": "50"},
        {"records": -1},
        {"records": None},
    ],
)
def test_a_part_that_cannot_be_or_names_another_file_is_refused(parts, change):
    content = json.loads((parts / PART_LIST).read_text())
    content["parts"][0] |= change
    (parts / PART_LIST).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not a list of parts"):
        open_parts(parts)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"more\n"])
def test_a_part_of_another_size_is_not_read(parts, change):
    part = parts / "part-00001"
    part.write_bytes(change(part.read_bytes()))
    with pytest.raises(ValueError, match=f"{part} is damaged or was edited: run"):
        open_parts(parts).read()


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"folder without parts\.json"):
        open_parts(tmp_path)


def test_parts_lie_in_the_store_that_is_named_and_are_read_from_there(parts, store):
    listed = (parts / PART_LIST).read_bytes()
    other = write(store.parent / "other.jsonl", LINES, 50)
    assert [file.name for file in other.iterdir()] == [PART_LIST]
    assert (other / PART_LIST).read_bytes() == listed
    assert open_parts(other).read() == b"".join(LINES)
    assert sorted(file.name for file in store.glob("*/*")) == sorted(part.sha256 for part in read_parts(other))


def test_what_was_read_last_is_kept_within_the_limit(store, monkeypatch):
    monkeypatch.setenv("CHATMILL_STORE_CACHE_GB", "1.2e-7")
    other = write(store.parent / "other.jsonl", LINES, 50)
    listed = read_parts(other)
    assert open_parts(other).read() == b"".join(LINES)
    kept = {file.name: file.stat().st_size for file in (store.parent / ".cache/parts").iterdir()}
    number = len(kept)
    assert kept == {part.sha256: part.bytes for part in listed[-number:]}
    assert sum(kept.values()) <= 120 < sum(part.bytes for part in listed[-number - 1 :])
    shutil.rmtree(store)
    with open_parts(other) as stream:
        stream.seek(sum(part.bytes for part in listed[:-number]))
        assert stream.read() == b"".join(LINES[-sum(part.records for part in listed[-number:]) :])


def test_a_part_that_is_damaged_in_the_store_is_not_read(store):
    other = write(store.parent / "other.jsonl", LINES, 50)
    part = read_parts(other)[1]
    stored = store / part.sha256[:2] / part.sha256
    stored.write_bytes(stored.read_bytes()[::-1])
    with pytest.raises(ValueError, match=f"part-00001 is damaged in the store, as file://{store}/.*: delete it there"):
        open_parts(other).read()
    problem = Store(f"file://{store}", 0).problem_of(part.sha256, part.bytes)
    assert problem == "is not the content that its name says: delete it there"


def test_what_the_store_lacks_is_named_and_the_same_run_writes_it_again(store):
    other = write(store.parent / "other.jsonl", LINES, 50)
    first, second, *_ = read_parts(other)
    (store / first.sha256[:2] / first.sha256).write_bytes(b"less")
    (store / second.sha256[:2] / second.sha256).unlink()
    with pytest.raises(ValueError, match=r"part-00000 is damaged in the store, .*run `dvc repro --force`"):
        open_parts(other).read()
    (other / PART_LIST).rename(store.parent / "before.json")
    write(other, LINES, 50)
    assert open_parts(other).read() == b"".join(LINES)
    assert (other / PART_LIST).read_bytes() == (store.parent / "before.json").read_bytes()
    shutil.rmtree(store.parent / ".cache")
    (store / second.sha256[:2] / second.sha256).unlink()
    with pytest.raises(ValueError, match=f"part-00001 is not in the store: expected it as file://{store}/.*--force`"):
        open_parts(other).read()


def test_what_is_damaged_in_the_cache_is_fetched_again_if_its_size_shows_it_and_else_verify_names_it(store):
    other = write(store.parent / "other.jsonl", LINES, 50)
    assert open_parts(other).read() == b"".join(LINES)
    part = read_parts(other)[1]
    kept = store.parent / ".cache/parts" / part.sha256
    kept.write_bytes(kept.read_bytes()[:-1])
    assert open_parts(other).read() == b"".join(LINES)
    check_parts(other, in_store=True)
    kept.write_bytes(kept.read_bytes()[::-1])
    with pytest.raises(ValueError, match=r"part-00001, .* is damaged in \.cache/parts: delete it there"):
        check_parts(other, in_store=True)


def test_other_files_in_the_cache_remain(store, monkeypatch):
    monkeypatch.setenv("CHATMILL_STORE_CACHE_GB", "0")
    other = write(store.parent / "other.jsonl", LINES, 50)
    (store.parent / ".cache/parts/notes.txt").mkdir(parents=True)
    assert open_parts(other).read() == b"".join(LINES)
    kept = {file.name for file in (store.parent / ".cache/parts").iterdir()}
    assert kept == {"notes.txt", read_parts(other)[-1].sha256}


def test_a_part_for_which_there_is_no_room_leaves_nothing_in_the_store(store):
    file = store.parent / "part"
    file.write_bytes(b"x" * 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"CHATMILL_STORE: file:///.*File too large"):
            stores.current_store().add(file, stores.sha256_of(file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(store.glob("*/*")) == []


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_named_and_not_made(store, monkeypatch):
    with s3_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("CHATMILL_STORE", "s3://bucket/prefix")
        other = write(store.parent / "other.jsonl", LINES, 50)
        assert open_parts(other).read() == b"".join(LINES)
        check_parts(other, in_store=True)
        monkeypatch.setenv("CHATMILL_STORE", "s3://buket/prefix")
        with pytest.raises(ValueError, match="CHATMILL_STORE: s3://buket/prefix: The specified bucket does not exist"):
            write(store.parent / "another.jsonl", LINES, 50)
        client = pytest.importorskip("boto3").client("s3", endpoint_url=address)
        assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["bucket"]


def test_without_the_store_its_name_is_asked_for(store, monkeypatch):
    other = write(store.parent / "other.jsonl", LINES, 50)
    monkeypatch.delenv("CHATMILL_STORE")
    with pytest.raises(ValueError, match="part-00000 is missing: run `dvc checkout`, or name the store that has it"):
        open_parts(other).read()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://x", "CHATMILL_STORE: nowhere://x: .*nowhere"),
        ("file:///proc/none", "CHATMILL_STORE: file:///proc/none: "),
        ("gs://bucket/x", "CHATMILL_STORE: gs://bucket/x: .*gcsfs"),
    ],
)
def test_a_store_that_cannot_be_written_is_named(tmp_path, monkeypatch, url, message):
    monkeypatch.setenv("CHATMILL_STORE", url)
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "other.jsonl", LINES, 50)


@pytest.mark.parametrize("limit", ["many", "-1", "inf", "nan"])
def test_other_limits_are_refused(store, monkeypatch, limit):
    monkeypatch.setenv("CHATMILL_STORE_CACHE_GB", limit)
    with pytest.raises(ValueError, match=f"CHATMILL_STORE_CACHE_GB: expected a number of gigabytes, got '{limit}'"):
        stores.current_store()


@pytest.mark.parametrize("url", ["s3:/bucket/prefix", "s3://", "file:///", " "])
def test_an_address_that_would_be_a_folder_with_an_odd_name_is_refused(store, monkeypatch, url):
    monkeypatch.setenv("CHATMILL_STORE", url)
    with pytest.raises(ValueError, match=f"CHATMILL_STORE: expected a folder, or an address as .*, got '{url}'"):
        stores.current_store()
