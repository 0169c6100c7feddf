import csv
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from chatmill.app.look.guess import NoGuessError
from chatmill.app.look.proposal import propose
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import take_sample
from support.paths import SHARED

REAL = SHARED / "chat"
NAMES = {  # of id, parent, role, content and rank
    "of OASST": ("message_id", "parent_id", "role", "text", "rank"),
    "others": ("uid", "in_reply_to", "who", "body", "rank"),
    "usual": ("id", "parent", "role", "content", "rank"),
    "nested": ("meta.id", "meta.replyTo", "author.role", "said", "meta.rank"),
}


def nested(row):
    """The row with an object for each path."""
    result = {}
    for path, value in row.items():
        first, _, rest = path.partition(".")
        result[first] = result.get(first, {}) | {rest: value} if rest else value
    return result


def rows_of(names, *, numbers=False):
    """Rows of 20 trees: a question, two answers, and a question to the second one."""
    rows = []
    for tree in range(20):
        said = [(None, "user", f"Who is number {tree}?"), (0, "assistant", f"Number {tree} is not known to me.")]
        said += [(0, "assistant", f"Number {tree} is the one that you see here."), (2, "user", f"Thanks for {tree}!")]
        for number, (parent, role, text) in enumerate(said):
            own, above = (4 * tree + n if n is not None and numbers else n for n in (number, parent))
            if not numbers:
                own, above = f"m{tree}-{own}", None if above is None else f"m{tree}-{above}"
            values = (own, above, role, text, 3 - number)
            rows.append(dict(zip(names, values, strict=True)))
    return rows


def proposed(folder, rows, name="x.jsonl"):
    file = folder / name
    match file.suffix:
        case ".csv":
            with file.open("w", newline="") as out:
                writer = csv.DictWriter(out, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            parquet.write_table(pa.Table.from_pylist(rows), file)
        case _:
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return propose(take_sample(file, folder), folder)


def columns_of(names):
    id, parent, role, content, rank = names
    own = {"role": role, "content": content}
    own = {name: column for name, column in own.items() if name != column}
    return {"id": id, "parent": parent, **own, "rank": rank}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
@pytest.mark.parametrize("numbers", [False, True])
def test_rows_that_name_the_row_to_which_they_reply_are_trees(tmp_path, names, name, numbers):
    rows = rows_of(names, numbers=numbers)
    if name != "x.csv":
        rows = [nested(row) for row in rows]
    trial = proposed(tmp_path, rows, name)
    assert (trial.guess.format, trial.guess.columns) == ("table", columns_of(names))
    assert (len(trial.records), trial.entries) == (20, 20)
    assert "Number 0 is the one that you see here." in trial.records[0].text
    assert trial.guess.doubts[-1].startswith("trees: each gives one conversation, along the best ranked replies")


def test_the_column_that_is_equal_in_a_tree_is_named(tmp_path):
    names = NAMES["others"]
    rows = [row | {"lang": "en", "topic": f"t{number // 4}"} for number, row in enumerate(rows_of(names))]
    assert proposed(tmp_path, rows).guess.columns == columns_of(names) | {"tree": "topic"}
    apart = [*rows[::2], *rows[1::2]]
    assert "tree" not in proposed(tmp_path, apart, "y.jsonl").guess.columns


def test_messages_with_replies_in_them_are_trees(tmp_path):
    def tree(i):
        best = {"who": "assistant", "said": f"It is {i}.", "removed": False, "below": [{"who": "user", "said": "Oh"}]}
        return {"n": i, "talk": {"who": "user", "said": f"What is {i}?", "below": [best | {"removed": True}, best]}}

    trial = proposed(tmp_path, [tree(i) for i in range(20)])
    columns = {"messages": "talk", "replies": "below", "role": "who", "content": "said", "deleted": "removed"}
    assert trial.guess.columns == columns
    assert len(trial.records) == 20
    assert trial.guess.doubts[-1].startswith("trees: each gives one conversation, along the first replies")


@pytest.mark.parametrize(
    "row",
    [
        lambda i: {
            "id": i,
            "level": i % 3 or None,
            "question": f"What is {i}, please?",
            "answer": f"It is {i}, I say.",
        },
        lambda i: {"id": i, "parent": f"p{i}", "question": f"What is {i}, please?", "answer": f"It is {i}, I say."},
    ],
)
def test_numbers_and_parents_that_are_no_rows_make_no_trees(tmp_path, row):
    assert proposed(tmp_path, [row(i) for i in range(30)]).guess.columns == {"prompt": "question", "response": "answer"}


@pytest.mark.parametrize(
    "row",
    [lambda i: {"id": i, "parent": f"p{i}"}, lambda i: {"id": i // 2, "parent": i // 4 or None}],
    ids=["of no row", "of several rows"],
)
def test_ids_must_name_one_row(row):
    rows = [row(i) | {"role": ("user", "assistant")[i % 2], "text": f"Text {i} of many others."} for i in range(12)]
    with pytest.raises(NoGuessError, match="each row is one message of role"):
        guess_rows(rows)


def test_trees_are_tried_from_the_beginning_of_a_large_file(tmp_path):
    rows = [{**row, "body": row["body"] * 2000} for row in rows_of(NAMES["others"])]
    trial = proposed(tmp_path, rows)
    assert (tmp_path / "x.jsonl").stat().st_size > 3_000_000
    assert (len(trial.records), trial.entries, trial.reasons) == (20, 20, {})


def test_trees_may_be_deeper_than_calls(tmp_path):
    row = {"who": "assistant", "said": "Yes, that is so."}
    for number in range(300):
        row = {"who": ("user", "assistant")[number % 2], "said": f"This is reply {number}.", "below": [row]}
    trial = proposed(tmp_path, [row] * 5)
    assert trial.guess.columns == {"messages": ".", "replies": "below", "role": "who", "content": "said"}


def test_what_single_messages_need_is_said():
    rows = [
        {"dialog": i // 4, "speaker": ("user", "bot")[i % 2], "text": f"This is text {i} of many."} for i in range(9)
    ]
    with pytest.raises(
        NoGuessError, match=r"group them by dialog.*or name the columns of ids .*: \{id: …, parent: …\}"
    ):
        guess_rows(rows)


@pytest.mark.skipif(not REAL.exists(), reason="needs the public datasets")
def test_oasst_in_parquet_is_read_by_a_mapping(tmp_path):
    lines = (REAL / "oasst1/en-validation.jsonl").read_text(encoding="utf-8").splitlines()
    columns = ("message_id", "parent_id", "message_tree_id", "role", "text", "rank", "deleted", "lang")
    rows = [{name: json.loads(line)[name] for name in columns} for line in lines]
    trial = proposed(tmp_path, rows, "x.parquet")
    assert trial.guess.columns == {
        "id": "message_id", "parent": "parent_id", "tree": "message_tree_id",
        "content": "text", "rank": "rank", "deleted": "deleted",
    }  # fmt: skip
    assert (len(trial.records), trial.entries) == (188, 191)
