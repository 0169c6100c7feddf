import json
from random import Random

import pyarrow as pa
import pytest
from pyarrow import parquet

from chatmill.datasets.formats import trees
from chatmill.datasets.formats.example import Example, Reject
from chatmill.datasets.formats.mapping import TableMapping
from chatmill.datasets.formats.registry import read_dataset

FLAT = {"id": "id", "parent": "parent", "content": "text", "rank": "rank", "deleted": "gone"}
NESTED = {"messages": "tree.root", "replies": "below", "content": "text", "rank": "rank", "deleted": "gone"}


def read(file, **mapping):
    return list(read_dataset(file, "table", limit=None, seed=0, mapping=TableMapping.model_validate(mapping)))


def items(tmp_path, rows, columns=FLAT, **mapping):
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read(tmp_path / "rows.jsonl", columns=columns, **mapping)


def texts(item):
    assert isinstance(item, Example), item
    return [(message.role, message.text) for message in item.conversation]


def message(name, parent, text, **others):
    depth = text.count("+")
    return {"id": name, "parent": parent, "role": ("user", "assistant")[depth % 2], "text": text, **others}


ROWS = [
    message("r", None, "Q"),
    message("a", "r", "+worse", rank=1),
    message("b", "r", "+best", rank=0),
    message("c", "r", "+gone", rank=-1, gone=True),
    message("x", "c", "++below what is gone"),
    message("d", "b", "++Q2"),
    message("e", "d", "+++last"),
]
PATH = [("user", "Q"), ("assistant", "+best"), ("user", "++Q2"), ("assistant", "+++last")]


def nested(rows):
    """The rows as one tree."""
    below = {row["id"]: dict(row) for row in rows}
    for row in rows[1:]:
        below[row["parent"]].setdefault("below", []).append(below[row["id"]])
    return {"tree": {"root": below[rows[0]["id"]]}, "lang": "en"}


@pytest.mark.parametrize("seed", range(6))
def test_rows_in_any_order_give_the_path_of_the_best_replies(tmp_path, seed):
    rows = Random(seed).sample(ROWS, len(ROWS)) if seed else ROWS
    [item] = items(tmp_path, rows)
    assert texts(item) == PATH
    assert item.place == f"{tmp_path}/rows.jsonl:{rows.index(ROWS[0]) + 1}"


def test_nested_messages_give_the_path_of_the_best_replies(tmp_path):
    [item] = items(tmp_path, [nested(ROWS)], NESTED)
    assert texts(item) == PATH


@pytest.mark.parametrize(("rows", "columns"), [(ROWS, FLAT), ([nested(ROWS)], NESTED)])
def test_all_other_messages_are_counted_by_reason(tmp_path, rows, columns):
    [item] = items(tmp_path, rows, columns)
    left_out = {part.reason: tuple(part.extent) for part in item.dropped}
    assert left_out == {"other_reply": (2, len("+worse++below what is gone")), "deleted": (1, len("+gone"))}


def test_without_a_rank_the_first_reply_is_read_and_equal_ranks_are_in_order(tmp_path):
    columns = {name: column for name, column in FLAT.items() if name not in ("rank", "deleted")}
    [item] = items(tmp_path, ROWS, columns)
    assert texts(item)[:2] == [("user", "Q"), ("assistant", "+worse")]
    [item] = items(tmp_path, [row | {"rank": 7} for row in ROWS])
    assert texts(item)[1] == ("assistant", "+worse")


@pytest.mark.parametrize("rank", [None, "x", [], float("nan"), 10**400, True])
def test_replies_without_a_number_as_rank_are_the_last(tmp_path, rank):
    rows = [ROWS[0], ROWS[1] | {"rank": rank}, ROWS[2]]
    [item] = items(tmp_path, [*rows, message("z", "a", "++", gone=False)])
    assert texts(item)[1] == ("assistant", "+best")


def test_messages_to_which_no_first_one_leads_are_orphans(tmp_path):
    rows = [
        *ROWS,
        message("o", "nobody", "+lost"),
        message("p", "o", "++below it"),
        message("s", "s", "+of itself"),
        message("t", "u", "+in a"),
        message("u", "t", "+circle"),
        message("b", "r", "+the id of another"),
        {"parent": "r", "text": "+no id"},
        "no message",
    ]
    *rejects, item = items(tmp_path, rows)
    assert texts(item) == PATH
    found = {(reject.place.rpartition(":")[2], reject.reason, reject.messages, reject.bytes) for reject in rejects}
    sizes = {8: 5, 9: 10, 10: 10, 11: 5, 12: 7}
    assert found == {(str(line), "orphan", 1, size) for line, size in sizes.items()} | {
        ("13", "same_id", 1, 18),
        ("14", "missing_field", 1, 6),
        ("15", "missing_field", 1, 0),
    }
    details = {reject.place.rpartition(":")[2]: reject.detail for reject in rejects}
    assert details["8"] == "the parent 'nobody' is not in the tree"
    assert details["11"] == "the parent 'u' leads to no first message"


def test_ids_may_be_of_any_characters(tmp_path):
    rows = [*ROWS, message("\ud800", "\udfff", "+lost"), message("\ud800", "r", "+the id of another")]
    *rejects, _ = items(tmp_path, rows)
    assert [reject.reason for reject in rejects] == ["orphan", "same_id"]
    assert [reject.detail.encode().count(b"\\ud") for reject in rejects] == [1, 1]


def test_with_a_column_of_trees_one_tree_is_in_memory(tmp_path, monkeypatch):
    rows = [row | {"id": f"{row['id']}{i}", "parent": row["parent"] and f"{row['parent']}{i}", "t": i}
            for i in range(5) for row in ROWS]  # fmt: skip
    monkeypatch.setattr(trees, "MAX_TREE", 1000 * len(ROWS) + 100)
    assert [texts(item) for item in items(tmp_path, rows, FLAT | {"tree": "t"})] == [PATH] * 5
    found = items(tmp_path, rows)
    assert [item.reason for item in found[:-1]] == ["too_long"] * 4 * len(ROWS)
    assert texts(found[-1]) == PATH
    assert "name what is equal in those of one as columns.tree" in found[0].detail


def test_a_deleted_first_message_rejects_its_tree_with_all_that_it_holds(tmp_path):
    rows = [row | {"gone": "true"} if row["id"] == "r" else row for row in ROWS]
    [item] = items(tmp_path, rows)
    assert (item.reason, item.messages, item.bytes) == ("deleted", 7, sum(len(row["text"]) for row in ROWS))


@pytest.mark.parametrize("replies", [3, "Hi", ["Hi"], [{"text": "+"}, None], {"text": "+"}])
def test_replies_that_are_no_messages_reject_their_tree(tmp_path, replies):
    tree = nested(ROWS)
    tree["tree"]["root"]["below"][0]["below"] = replies
    [item] = items(tmp_path, [tree], NESTED)
    assert item.reason == "missing_field"
    assert item.detail.startswith("below: expected messages, got ")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.json", "b.json"])
def test_trees_may_be_in_any_container(tmp_path, name):
    rows = [{"id": 1, "parent": None}, {"id": 2, "parent": 1.0}, {"id": 3, "parent": 1.0}, {"id": 4, "parent": 3.0}]
    rows = [row | {"role": "user", "text": str(row["id"]), "rank": 5 - row["id"], "gone": False} for row in rows]
    rows = [row | {"role": ("user", "assistant", "assistant", "user")[row["id"] - 1]} for row in rows]
    file = tmp_path / name
    match name:
        case "a.csv":
            lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
            file.write_text("\n".join([",".join(rows[0]), *lines]))
        case "a.parquet":
            parquet.write_table(pa.Table.from_pylist([row | {"other": 1} for row in rows]), file)
        case _:
            file.write_text(json.dumps(rows if name == "a.json" else {"version": 1, "data": rows}))
    [item] = read(file, columns=FLAT)
    assert texts(item) == [("user", "1"), ("assistant", "3"), ("user", "4")]


@pytest.mark.parametrize("root", [[], [{"role": "user", "text": "Hi"}, {"role": "assistant", "text": "Yes"}], "Hi", 7])
def test_a_first_message_that_is_none_is_rejected(tmp_path, root):
    rows = [{"m": root}, {"m": ROWS[0] | {"below": ROWS[2:3]}}]
    item, tree = items(tmp_path, rows, {"messages": "m", "replies": "below", "content": "text"})
    assert texts(tree) == PATH[:2]
    assert (item.reason, item.detail.partition(",")[0]) == ("missing_field", "m: expected a message")


def test_the_name_of_a_column_may_be_replies_and_messages_may_have_flags(tmp_path):
    rows = [row | {"replies": row["text"]} | ({"weight": 0} if row["id"] == "b" else {}) for row in ROWS]
    [item] = items(tmp_path, rows, FLAT | {"content": "replies"})
    assert texts(item) == PATH
    assert [turn.train for turn in item.turns] == [None, False, None, None]


def test_a_very_long_thread_is_one_conversation(tmp_path):
    rows = [message("0", None, "Q"), *(message(str(i), str(i - 1), "+" * (i % 2) + "x") for i in range(1, 5000))]
    columns = {name: column for name, column in FLAT.items() if name not in ("rank", "deleted")}
    [item] = items(tmp_path, rows, columns)
    assert len(item.conversation) == 5000


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (FLAT | {"parent": "reply_to"}, r"columns\.parent: no row has the id of another one in 'reply_to'"),
        (FLAT | {"rank": "order"}, r"columns\.rank: no message has 'order'"),
        (NESTED | {"deleted": "away"}, r"columns\.deleted: no message has 'away'"),
        (NESTED | {"replies": "answers"}, r"columns\.replies: no message has 'answers'"),
    ],
)
def test_a_column_that_no_message_has_is_an_error(tmp_path, columns, problem):
    with pytest.raises(ValueError, match=problem):
        items(tmp_path, [nested(ROWS)] if "messages" in columns else ROWS, columns)


def test_ids_that_no_row_has_are_said(tmp_path):
    found = items(tmp_path, ROWS, FLAT | {"id": "name"})
    assert {item.detail for item in found if isinstance(item, Reject)} >= {
        "no 'name' in an object of 'id', 'parent', 'role', 'text'"
    }


@pytest.mark.parametrize(
    "columns",
    [
        {"id": "id"},
        {"parent": "parent"},
        {"id": "id", "parent": "parent", "messages": "."},
        {"id": "id", "parent": "parent", "replies": "replies"},
        {"id": "id", "parent": "parent", "prompt": "q", "response": "a"},
        {"messages": ".", "tree": "t"},
        {"messages": ".", "rank": "rank"},
        {"replies": "replies"},
        {"text": "text", "rank": "rank"},
    ],
)
def test_columns_of_trees_that_do_not_go_together_are_an_error(columns):
    with pytest.raises(ValueError, match=r"expected|need"):
        TableMapping.model_validate({"columns": columns})


def test_what_the_first_message_says_of_its_tree_is_read(tmp_path):
    rows = [row | {"lang": "en" if row["id"] == "r" else "de", "sys": "Be kind."} for row in ROWS]
    columns = FLAT | {"system": "sys", "group": "lang", "language": "lang"}
    [item] = items(tmp_path, rows, columns, languages=["en"])
    assert texts(item) == [("system", "Be kind."), *PATH]
    assert item.group is not None
