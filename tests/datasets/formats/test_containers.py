"""Files of any kind give the same rows, and what is wrong with a file is said with its name."""

import csv
import gzip
import json
import random

import pyarrow as pa
import pytest
import zstandard
from pyarrow import ipc, parquet

from chatmill.datasets.formats.containers import files_of
from chatmill.datasets.formats.example import Example
from chatmill.datasets.formats.registry import read_dataset

COLUMNS = {"prompt": "Q", "response": "A, so"}
PAIR = {"prompt": "Q", "response": "A"}
ROWS = [{"Q": f"Is it open? {number}", "A, so": "Yes.", "n": number} for number in range(700)]


def read(path, **columns):
    return list(read_dataset(path, "table", columns=columns))


def questions(found):
    return [item.conversation[0].text for item in found if isinstance(item, Example)]


def write(file, table, rows=()):
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    match file.suffix:
        case ".parquet":
            parquet.write_table(table, file, row_group_size=300)
        case ".arrow" if "stream" in file.stem:
            with ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=300)
        case ".arrow" | ".feather":
            with ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=300)
        case ".csv" | ".tsv":
            with file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, rows[0], delimiter="\t" if file.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case ".json":
            file.write_text(json.dumps(rows))
        case ".gz":
            file.write_bytes(gzip.compress(lines.encode()))
        case ".zst":
            half = len(lines) // 2
            file.write_bytes(b"".join(zstandard.compress(part.encode()) for part in (lines[:half], lines[half:])))
        case _:
            file.write_text(lines)


NAMES = ["a.parquet", "a.arrow", "stream.arrow", "a.feather", "a.csv", "a.tsv", "a.json", "a.jsonl", "a", "a.jsonl.zst"]


@pytest.mark.parametrize("name", [*NAMES, "a.jsonl.gz"])
def test_any_container_gives_the_same_rows(tmp_path, name):
    write(tmp_path / name, pa.Table.from_pylist(ROWS), ROWS)
    found = read(tmp_path / name, **COLUMNS)
    assert questions(found) == [row["Q"] for row in ROWS]
    assert found[-1].place.startswith(f"{tmp_path / name}:")


def test_arguments_that_one_schema_for_all_tools_makes_null_are_left_out_and_noted(tmp_path):
    arguments = [{"city": "Rome", "at": {"day": 1}}, {"box": "red", "at": {"hour": None}}]
    calls = [[{"function": {"name": "f", "arguments": found}}] for found in arguments]
    rows = [{"messages": [TURNS[0], {"role": "assistant", "content": "", "tool_calls": call}]} for call in calls]
    write(tmp_path / "a.parquet", pa.Table.from_pylist([*rows, {"messages": TURNS}]))
    found = list(read_dataset(tmp_path / "a.parquet", "messages", limit=None, seed=0))
    said = [[json.loads(part.text)["arguments"] for part in item.conversation[1].parts] for item in found[:2]]
    assert said == [[arguments[0]], [{"box": "red", "at": {}}]]
    assert [item.notes for item in found] == [["null_arguments"], ["null_arguments"], []]


def test_the_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path):
    for name, part in (("b/2.csv", ROWS[400:]), ("a/1.jsonl", ROWS[:400])):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, None, part)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/1.jsonl.metadata").write_text("0a1b\n")
    assert questions(read(tmp_path, **COLUMNS)) == [row["Q"] for row in ROWS]
    assert files_of(tmp_path, ["*.csv"]) == [tmp_path / "b/2.csv"]
    with pytest.raises(ValueError, match=r"no file matches \*\.txt"):
        files_of(tmp_path, ["*.txt"])
    with pytest.raises(ValueError, match=r"files: '/etc/passwd': expected a pattern"):
        files_of(tmp_path, ["/etc/passwd"])


TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
TALKS = [{"turns": [{"role": "user", "content": str(i)}, TURNS[1]]} for i in range(6)]
LISTS = [talk["turns"] for talk in TALKS]


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ({"turns": TURNS, "meta": {"a": 1}}, "turns", ["Hi"]),
        ({"meta": {"id": 1}, "chat": {"id": 2, "turns": TURNS}}, "chat.turns", ["Hi"]),
        ({"7f": {"turns": TURNS}, "c3": {"turns": TURNS, "n": 1}}, "turns", ["Hi"] * 2),
        ({"7f": TURNS, "c3": TURNS}, ".", ["Hi"] * 2),
        ({"version": "1", "data": TALKS}, "turns", [*"012345"]),
        ({"part 1": TALKS[:4], "names": ["a"], "part 2": TALKS[4:], "meta": {"turns": 1}}, "turns", [*"012345"]),
        ({"labels": [1, 2], "empty": [], "all": TALKS}, "turns", [*"012345"]),
        ({"train": LISTS[:4], "test": LISTS[4:]}, ".", [*"012345"]),
        ({"all": TALKS, "turns": 3}, "turns", [*"012345"]),
        ({"speakers": [{"name": "Ana"}], "all": TALKS, "others": [{"turns": 3}, 7, None]}, "turns", [*"012345"]),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_object_is_a_row_or_holds_rows(tmp_path, content, column, expected, indent):
    (tmp_path / "a.json").write_text(json.dumps(content, indent=indent))
    assert questions(read(tmp_path / "a.json", messages=column)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "Q,A\nx,y\n".encode("utf-16"), "UTF-16: convert it to UTF-8"),
        ("a.csv", "Q,A,Größe\nx,y,z\n".encode("cp1252"), "its header is not UTF-8: convert it, as by iconv"),
        ("a.csv", b"Q,A,A\nx,y,z\n", "1: two columns called 'A': rename one of them"),
        ("a.csv", b"Q,A\nx," + b"y" * 17_000_000, "2: not a table: row longer than 16,000,000 characters"),
        ("a.csv", b'Q,A\nx,"' + b"y,z\n" * 4_500_000 + b'"\n', "2: not a table: row longer than 16,000,000 characters"),
        ("a.parquet", b"PAR1 no", " damaged, or not a Parquet file"),
        ("a.arrow", b"ARROW1 no", " damaged, or not an Arrow file"),
        ("a.feather", b"", " damaged, or not an Arrow file"),
        *((f"a.jsonl{suffix}", data[:-3], f" damaged, or not a {suffix} file: .*, near byte") for suffix, data in (
            (".gz", gzip.compress(b"{}\n" * 9)), (".zst", zstandard.compress(b"{}\n" * 9)),
        )),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: ?{message}"):
        read(tmp_path / name, **PAIR)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_a_damaged_table_is_rows_or_an_error_that_names_it(tmp_path, name):
    write(tmp_path / name, pa.Table.from_pylist(ROWS[:20]))
    content = (tmp_path / name).read_bytes()
    for seed in range(100):
        chosen, damaged = random.Random(seed), bytearray(content)
        for _ in range(chosen.choice([1, 5])):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            read(tmp_path / name, **COLUMNS)
        except ValueError as error:
            assert str(tmp_path) in str(error), seed
