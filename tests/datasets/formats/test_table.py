import csv
import gzip
import json
import os
import re
import subprocess
import sys
from random import Random

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from chatmill.conversation import render
from chatmill.datasets.formats.containers import files_of
from chatmill.datasets.formats.example import Example, Reject, extent_of
from chatmill.datasets.formats.mapping import TableMapping
from chatmill.datasets.formats.registry import read_dataset
from support.paths import SOURCE

QUESTION, ANSWER, SYSTEM = "Is it open?", "Yes, until six.", "Be short."
PAIR = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
WITH_SYSTEM = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{PAIR}"


def read(file, **mapping):
    return list(read_dataset(file, "table", limit=None, seed=0, mapping=TableMapping.model_validate(mapping)))


def items(tmp_path, *rows, **mapping):
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read(tmp_path / "rows.jsonl", **mapping)


def rendered(found):
    assert all(isinstance(item, Example) for item in found), found
    return [render(item.conversation) for item in found]


def reject(tmp_path, row, **mapping):
    [item] = items(tmp_path, row, **mapping)
    assert isinstance(item, Reject), item
    return item.reason, item.detail


def said(role, text, role_key="role", content_key="content"):
    return {role_key: role, content_key: text}


@pytest.mark.parametrize("column", ["messages", "utterances", "data.turns", "a.b.c", "a dialogue"])
@pytest.mark.parametrize(("role", "content"), [("role", "content"), ("from", "value"), ("author.kind", "body.text")])
def test_messages_are_read_from_any_keys(tmp_path, column, role, content):
    def nested(path, value):
        for key in reversed(path.split(".")):
            value = {key: value}
        return value

    turns = [nested(role, who) | nested(content, text) for who, text in (("user", QUESTION), ("assistant", ANSWER))]
    columns = {"messages": column, "role": role, "content": content}
    assert rendered(items(tmp_path, nested(column, turns) | {"id": 1}, columns=columns)) == [PAIR]


def test_a_column_with_a_dot_in_its_name_goes_before_a_path(tmp_path):
    row = {"a.b": [said("user", QUESTION), said("assistant", ANSWER)], "a": {"b": []}}
    assert rendered(items(tmp_path, row, columns={"messages": "a.b"})) == [PAIR]


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("human", "gpt"), {}),
        (("User", "Chatbot"), {}),
        (("user ", " Assistant"), {}),
        ((0, 1), {"user": ["0"], "assistant": ["1"]}),
        ((False, True), {"user": ["false"], "assistant": ["true"]}),
        (("USER", "SYSTEM"), {"assistant": ["system"]}),
        (("customer", "agent_1"), {"user": ["customer"], "assistant": ["agent_1", "agent_2"]}),
        (("assistant", "user"), {"user": ["assistant"], "assistant": ["user"]}),
    ],
)
def test_roles_go_before_the_usual_names(tmp_path, names, roles):
    row = {"messages": [said(names[0], QUESTION), said(names[1], ANSWER)]}
    assert rendered(items(tmp_path, row, columns={"messages": "messages"}, roles=roles)) == [PAIR]


def test_speakers_may_be_left_out(tmp_path):
    row = {"messages": [said("narrator", "Night."), said("user", QUESTION), said("assistant", ANSWER)]}
    assert rendered(items(tmp_path, row, columns={"messages": "messages"}, roles={"ignore": ["narrator"]})) == [PAIR]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"q": QUESTION, "a": ANSWER}, {"prompt": "q", "response": "a"}),
        ({"q": [said("user", QUESTION)], "a": [said("assistant", ANSWER)]}, {"prompt": "q", "response": "a"}),
        ({"q": QUESTION, "chosen": [said("assistant", ANSWER)]}, {"prompt": "q", "response": "chosen"}),
        ({"q": QUESTION, "i": "", "a": ANSWER}, {"prompt": "q", "query": "i", "response": "a"}),
        ({"q": QUESTION, "c": ANSWER, "r": "No."}, {"prompt": "q", "chosen": "c", "rejected": "r"}),
        (
            {"q": QUESTION, "c": [said("user", QUESTION), said("assistant", ANSWER)]},
            {"prompt": "q", "chosen": "c"},
        ),
        (
            {"q": [said("user", QUESTION)], "c": said("assistant", ANSWER), "r": said("assistant", "No.")},
            {"prompt": "q", "chosen": "c", "rejected": "r"},
        ),
    ],
)
def test_prompt_and_completion_are_texts_or_messages(tmp_path, row, columns):
    assert rendered(items(tmp_path, row, columns=columns)) == [PAIR]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (["a", "c"], ["b", "d"]),
        (["a"], ["b"]),
        (["a"], "b"),
        ("a", ["b"]),
    ],
)
def test_questions_and_answers_in_two_lists_alternate(tmp_path, asked, answered):
    row = {"q": asked, "choices": [{"turns": answered}], "s": SYSTEM}
    [item] = items(tmp_path, row, columns={"prompt": "q", "response": "choices.0.turns", "system": "s"})
    texts = [message.text for message in item.conversation]
    assert texts == [SYSTEM, *(["a", "b", "c", "d"] if len(asked) == 2 else ["a", "b"])]
    assert [message.role for message in item.conversation[1:3]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("asked", "answered", "reason", "messages"),
    [
        (["a", "c"], ["b"], "unequal_lists", 3),
        (["a"], ["b", "d"], "unequal_lists", 3),
        (["a", "c"], [], "unequal_lists", 2),
        ("a", ["b", "d"], "unequal_lists", 3),
        (["a", "c"], "b", "unequal_lists", 3),
        (["a", "c"], ["b", None], "not_text", 3),
        (["a"], [said("assistant", "b")], "not_text", 2),
        (["a"], None, "not_text", 1),
    ],
)
def test_lists_that_do_not_fit_each_other_are_rejected_by_reason(tmp_path, asked, answered, reason, messages):
    [item] = items(tmp_path, {"q": asked, "a": answered}, columns={"prompt": "q", "response": "a"})
    assert (item.reason, item.messages) == (reason, messages)
    size = sum(text in item.detail for text in ("expected as many answers as questions, got", "in q and", "in a"))
    assert size == (3 if reason == "unequal_lists" else 0)


@pytest.mark.parametrize("column", ["d.1.turns", "d.0", "d.9.turns", "d.-1.turns", "d.x", "d.1.turns.0.role", "d.²"])
def test_a_path_may_have_the_places_of_a_list(tmp_path, column):
    row = {"d": [{"turns": []}, {"turns": [said("user", QUESTION), said("assistant", ANSWER)]}]}
    [item] = items(tmp_path, row, columns={"messages": column})
    if column == "d.1.turns":
        assert rendered([item]) == [PAIR]
    else:
        assert item.reason in ("missing_field", "no_marker")


def test_a_flag_may_be_at_a_path(tmp_path):
    messages = [said("user", "x"), said("assistant", "x") | {"meta": {"learn": 0}}, said("user", "y")]
    messages.append(said("assistant", "y") | {"meta": {"learn": 1}})
    [item] = items(tmp_path, {"messages": messages}, columns={"messages": "messages", "train": "meta.learn"})
    assert [turn.train for turn in item.turns] == [None, False, None, True]


def test_an_input_follows_the_prompt(tmp_path):
    [item] = items(
        tmp_path, {"q": "Sort.", "i": "3 1", "a": "1 3"}, columns={"prompt": "q", "query": "i", "response": "a"}
    )
    assert item.conversation[0].text == "Sort.\n\n3 1"


def test_a_column_may_hold_the_system_message(tmp_path):
    rows = [{"s": text, "q": QUESTION, "a": ANSWER} for text in (SYSTEM, "")]
    columns = {"system": "s", "prompt": "q", "response": "a"}
    assert rendered(items(tmp_path, *rows, columns=columns)) == [WITH_SYSTEM, PAIR]


@pytest.mark.parametrize(
    "row", [{"q": QUESTION, "a": ANSWER}, {"m": [said("user", QUESTION), said("assistant", ANSWER)]}]
)
def test_the_system_message_may_be_inside_another_column(tmp_path, row):
    columns = {"messages": "m"} if "m" in row else {"prompt": "q", "response": "a"}
    found = items(tmp_path, row | {"meta": {"s": SYSTEM}}, columns=columns | {"system": "meta.s"})
    assert rendered(found) == [WITH_SYSTEM]


def test_texts_alternate(tmp_path):
    assert rendered(items(tmp_path, {"d": [QUESTION, ANSWER]}, columns={"messages": "d"})) == [PAIR]
    [item] = items(tmp_path, {"d": [ANSWER, QUESTION]}, columns={"messages": "d"}, first="assistant")
    assert [message.role for message in item.conversation] == ["assistant", "user"]


def test_a_list_may_be_json_in_a_text(tmp_path):
    for value in ([said("user", QUESTION), said("assistant", ANSWER)], [QUESTION, ANSWER]):
        assert rendered(items(tmp_path, {"d": json.dumps(value, indent=1)}, columns={"messages": "d"})) == [PAIR]


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (f"User: {QUESTION}\nAssistant: {ANSWER}", {}),
        (f"user : {QUESTION}\n\n bot: {ANSWER}\n", {}),
        (f"User 1: {QUESTION}\nUser 2: {ANSWER}", {"user": ["User 1"], "assistant": ["User 2"]}),
    ],
)
def test_a_text_with_marks_is_split_at_them(tmp_path, text, roles):
    assert rendered(items(tmp_path, {"t": text}, columns={"messages": "t"}, roles=roles)) == [PAIR]


def test_what_is_no_mark_stays_in_the_turn(tmp_path):
    text = f"user: {QUESTION} My user: told me\nassistant: {ANSWER}\nNote: six"
    [item] = items(tmp_path, {"t": text}, columns={"messages": "t"})
    assert [message.text for message in item.conversation] == [
        f"{QUESTION} My user: told me",
        f"{ANSWER}\nNote: six",
    ]


def test_names_in_roles_are_the_only_marks_if_they_have_both_sides(tmp_path):
    row = {"t": f"USER: {QUESTION}\nASSISTANT: {ANSWER}\nModel: A1\nFunction: none"}
    [item] = items(tmp_path, row, columns={"messages": "t"}, roles={"user": "USER", "assistant": "ASSISTANT"})
    assert [message.text for message in item.conversation] == [QUESTION, f"{ANSWER}\nModel: A1\nFunction: none"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"turns": []}, ("missing_field", "no column 'messages' in an object of 'turns'")),
        ({"messages": 3}, ("missing_field", "messages: expected a list or a text, got the number 3")),
        ({"messages": [said("user", None)]}, ("not_text", "content: expected text, got null")),
        ({"messages": [said(7, "x")]}, ("unknown_role", "unknown role '7': add it to roles")),
        ({"messages": [said(None, "x")]}, ("not_text", "role: expected text, got null")),
        ({"messages": [{"role": "user"}]}, ("missing_field", "no column 'content' in an object of 'role'")),
        ({"messages": ["a", 2]}, ("not_text", "text 2: expected text, got the number 2")),
        ({"messages": "no mark"}, ("no_marker", "expected the name of a speaker and a colon, not 'no mark'")),
        ({"messages": [said("agent_7", "x")]}, ("unknown_role", "unknown role 'agent_7': add it to roles")),
    ],
)
def test_a_row_that_does_not_fit_is_rejected_with_what_is_there(tmp_path, row, expected):
    assert reject(tmp_path, row, columns={"messages": "messages"}) == expected


def test_all_unknown_roles_of_a_row_are_named(tmp_path):
    row = {"messages": [said("user", "x"), said("b", "x"), said("a", "x"), said("b", "x")]}
    expected = "unknown roles 'a', 'b': add them to roles"
    assert reject(tmp_path, row, columns={"messages": "messages"}) == ("unknown_role", expected)


def test_names_that_are_not_in_roles_take_turns_if_it_is_said_who_begins(tmp_path):
    row = {"d": [said("7f", QUESTION), said("c3", ANSWER), said("7f", "Oh")]}
    [item] = items(tmp_path, row, columns={"messages": "d"}, first="user")
    assert [message.role for message in item.conversation] == ["user", "assistant", "user"]
    row = {"d": [said("a", "x"), said("b", "x"), said("c", "x")]}
    assert reject(tmp_path, row, columns={"messages": "d"}, first="user")[0] == "unknown_role"


def test_a_text_is_split_at_its_separator(tmp_path):
    columns, text = {"messages": "."}, f"{QUESTION} __eou__ {ANSWER} __eou__\n"
    (tmp_path / "a.txt").write_text(text * 2)
    assert rendered(read(tmp_path / "a.txt", columns=columns, turn_separator="__eou__")) == [PAIR, PAIR]


@pytest.mark.parametrize("field", ["weight", "train", "learn"])
def test_a_message_says_whether_it_is_trained(tmp_path, field):
    messages = [said("user", "x"), said("assistant", "x") | {field: 0}, said("user", "y") | {field: True}]
    columns = {"messages": "messages"} | ({"train": field} if field == "learn" else {})
    [item] = items(tmp_path, {"messages": messages}, columns=columns)
    assert [turn.train for turn in item.turns] == [None, False, True]
    messages[0][field] = 0.5
    assert reject(tmp_path, {"messages": messages}, columns=columns)[0] == "bad_flag"


def test_calls_and_their_outputs_are_read_by_mapping(tmp_path):
    call = {"function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
    row = {
        "d": [
            {"who": "customer", "text": "1+1?"},
            {"who": "agent", "text": None, "tool_calls": [call]},
            {"who": "api", "text": "2"},
            {"who": "agent", "text": "It is 2."},
        ],
        "t": [{"name": "calculator"}],
    }
    columns = {"messages": "d", "role": "who", "content": "text", "tools": "t"}
    roles = {"user": "customer", "assistant": "agent", "output": "api"}
    [item] = items(tmp_path, row, columns=columns, roles=roles)
    assert render(item.conversation[-1:]) == (
        "<|im_start|>assistant\n<|python_start|>1+1<|python_end|><|output_start|>2<|output_end|>It is 2.<|im_end|>\n"
    )
    assert item.conversation[0].text == "Tools: calculator"
    assert extent_of(item.turns) == (4, len("1+1?1+12It is 2."))


def test_a_system_column_stays_where_the_chosen_side_repeats_the_prompt(tmp_path):
    row = {"p": QUESTION, "c": [said("user", QUESTION), said("assistant", ANSWER)], "s": SYSTEM}
    columns = {"prompt": "p", "chosen": "c", "system": "s"}
    assert rendered(items(tmp_path, row, columns=columns)) == [WITH_SYSTEM]
    row["c"].insert(0, said("system", SYSTEM))
    assert rendered(items(tmp_path, row, columns=columns)) == [WITH_SYSTEM]


def test_arguments_of_a_call_with_a_key_twice_are_rejected(tmp_path):
    call = {"function": {"name": "f", "arguments": '{"a": 1, "a": 2}'}}
    messages = [said("user", QUESTION), {"role": "assistant", "content": None, "tool_calls": [call]}]
    reason, detail = reject(tmp_path, {"messages": messages}, columns={"messages": "messages"})
    assert (reason, detail.partition(": not JSON: ")[2]) == ("bad_call", "the key 'a' twice in one object")


def test_a_history_comes_before_the_prompt(tmp_path):
    row = {"h": [["a", "b"]], "q": QUESTION, "a": ANSWER}
    [item] = items(tmp_path, row, columns={"history": "h", "prompt": "q", "response": "a"})
    assert [message.text for message in item.conversation] == ["a", "b", QUESTION, ANSWER]


@pytest.mark.parametrize("history", [1, True, 0, False, 0.5, {"a": 1}, "Hi"])
def test_a_history_that_is_no_list_is_rejected(tmp_path, history):
    columns = {"prompt": "q", "response": "a", "history": "h"}
    assert reject(tmp_path, {"h": history, "q": QUESTION, "a": ANSWER}, columns=columns)[0] == "missing_field"


def test_rows_with_one_value_in_the_column_of_groups_are_one_group(tmp_path):
    rows = [{"q": f"{QUESTION} {i}", "a": ANSWER, "g": i % 2} for i in range(4)]
    groups = [item.group for item in items(tmp_path, *rows, columns={"prompt": "q", "response": "a", "group": "g"})]
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_rows_in_other_languages_are_left_out(tmp_path):
    rows = [{"q": QUESTION, "a": ANSWER, "l": language} for language in ("en", "de", None)]
    columns = {"prompt": "q", "response": "a", "language": "l"}
    found = items(tmp_path, *rows, columns=columns, languages=["en"])
    assert [getattr(item, "reason", "kept") for item in found] == ["kept", "language", "language"]


def test_an_optional_column_that_no_row_has_is_an_error(tmp_path):
    rows = [{"q": QUESTION, "a": ANSWER}, {"q": QUESTION, "a": ANSWER, "s": SYSTEM}]
    columns = {"prompt": "q", "response": "a", "system": "s"}
    assert len(items(tmp_path, *rows, columns=columns)) == 2
    with pytest.raises(ValueError, match=r"columns\.system: no row has the column 's': the last one has 'q', 'a'"):
        items(tmp_path, rows[0], columns=columns)


def test_a_column_of_flags_that_no_message_has_is_an_error(tmp_path):
    messages = [said("user", QUESTION), said("assistant", ANSWER) | {"loss": 0}]
    assert len(items(tmp_path, {"messages": messages}, columns={"messages": "messages", "train": "loss"})) == 1
    with pytest.raises(ValueError, match=r"columns\.train: no message has 'los'"):
        items(tmp_path, {"messages": messages}, columns={"messages": "messages", "train": "los"})


@pytest.mark.parametrize("columns", [{}, {"messages": "m", "prompt": "q"}, {"prompt": "q"}, {"response": "a"}])
def test_columns_say_where_all_of_a_conversation_is(columns):
    with pytest.raises(ValueError, match=r"expected messages( alone)?, or prompt and response"):
        TableMapping.model_validate({"columns": columns})


@pytest.fixture(scope="module")
def rows():
    return [{"Q": f"{QUESTION} {number}", "A, so": ANSWER, "n": number} for number in range(700)]


COLUMNS = {"prompt": "Q", "response": "A, so"}


PAIR_COLUMNS = {"prompt": "Q", "response": "A"}


def write(file, rows):
    write_table(file, pa.Table.from_pylist(rows), rows)


def write_table(file, table, rows=()):
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
            file.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))
        case _:
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


NAMES = ["a.parquet", "a.arrow", "stream.arrow", "a.feather", "a.csv", "a.tsv", "a.json", "a.jsonl", "a.jsonl.gz", "a"]


@pytest.mark.parametrize("name", NAMES)
def test_any_container_gives_the_same_rows(tmp_path, rows, name):
    write(tmp_path / name, rows)
    found = read(tmp_path / name, columns=COLUMNS)
    assert [item.conversation[0].text for item in found] == [row["Q"] for row in rows]
    assert {item.conversation[1].text for item in found} == {ANSWER}
    assert found[-1].place.startswith(f"{tmp_path / name}:")


def test_all_columns_of_a_parquet_file_are_named_where_one_is_missing(tmp_path, rows):
    write(tmp_path / "a.parquet", rows)
    first = read(tmp_path / "a.parquet", columns={"prompt": "q", "response": "A, so"})[0]
    assert first.detail == "no column 'q' in an object of 'Q', 'A, so', 'n'"


def test_a_parquet_file_is_known_by_its_first_bytes(tmp_path, rows):
    write(tmp_path / "a.parquet", rows)
    (tmp_path / "a.parquet").rename(tmp_path / "data-00000-of-00001")
    assert len(read(tmp_path / "data-00000-of-00001", columns=COLUMNS)) == 700


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path, rows):
    for name, part in (("b/2.parquet", rows[400:]), ("a/1.jsonl", rows[:400])):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, part)
    (tmp_path / ".gitignore").write_text("*")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/1.jsonl.metadata").write_text("0a1b\n")
    found = read(tmp_path, columns=COLUMNS)
    assert [item.conversation[0].text for item in found] == [row["Q"] for row in rows]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "Q,A\nx,y\n".encode("utf-16"), "UTF-16: convert it to UTF-8"),
        ("a.csv", "Q,A,Größe\nx,y,z\n".encode("cp1252"), "its header is not UTF-8: convert it, as by iconv"),
        ("a.parquet", b"PAR1 no", "damaged, or not a Parquet file"),
        ("a.arrow", b"ARROW1 no", "damaged, or not an Arrow file"),
        ("a.feather", b"", "damaged, or not an Arrow file"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        read(tmp_path / name, columns=COLUMNS)


TURNS = [said("user", QUESTION), said("assistant", ANSWER)]


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ({"7f": {"turns": TURNS}, "c3": {"turns": TURNS, "n": 1}}, "turns"),
        ({"7f": TURNS, "c3": TURNS}, "."),
        ({"version": "1", "data": [{"turns": TURNS}, {"turns": TURNS}]}, "turns"),
        ({"data": [{"turns": TURNS}, {"turns": TURNS}]}, "turns"),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_rows_may_be_in_an_object(tmp_path, content, column, indent):
    (tmp_path / "a.json").write_text(json.dumps(content, indent=indent))
    assert rendered(read(tmp_path / "a.json", columns={"messages": column})) == [PAIR, PAIR]


ROWS = [{"turns": [said("user", str(i)), said("assistant", ANSWER)]} for i in range(6)]


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ({"train": ROWS[:4], "test": ROWS[4:]}, "turns"),
        ({"part 1": ROWS[:4], "names": ["a", "b"], "part 2": ROWS[4:], "meta": {"turns": 1}}, "turns"),
        ({"labels": [1, 2], "empty": [], "all": ROWS}, "turns"),
        ({"train": [row["turns"] for row in ROWS[:4]], "test": [row["turns"] for row in ROWS[4:]]}, "."),
        ({"train": [{"a": [row]} for row in ROWS[:4]], "dev": [{"a": [row]} for row in ROWS[4:]]}, "a.0.turns"),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_the_rows_of_all_lists_of_an_object_are_read_in_their_order(tmp_path, content, column, indent, name):
    data = json.dumps(content, indent=indent).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read(tmp_path / name, columns={"messages": column})
    assert [item.conversation[0].text for item in found] == [str(i) for i in range(6)]
    lines = 1 + data[: data.index(b'"4"')].count(b"\n")
    assert int(found[4].place.partition(", ")[0].rpartition(":")[2]) <= lines
    assert found[0].place.partition(", ")[2].startswith("entry 1 of ")


def test_rows_of_a_list_that_do_not_fit_are_rejected(tmp_path):
    content = {"speakers": [{"name": "Ana"}], "all": ROWS, "others": [{"turns": 3}, 7, None]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    found = read(tmp_path / "a.json", columns={"messages": "turns"})
    rejects = [item for item in found if isinstance(item, Reject)]
    assert len(found) - len(rejects) == len(ROWS)
    assert [(item.reason, item.place.partition(", ")[2]) for item in rejects] == [
        ("missing_field", "entry 1 of speakers"),
        ("missing_field", "entry 1 of others"),
        ("missing_field", "entry 2 of others"),
        ("missing_field", "entry 3 of others"),
    ]


def test_a_list_of_an_object_with_broken_entries_is_read_on(tmp_path):
    rows = ",\n".join(json.dumps(row) for row in ROWS)
    broken = rows.replace('"2"', '"2')
    (tmp_path / "a.json").write_text(f'{{"meta": {{"a": 1}}, "data": [\n{broken}], "test": [\n{rows}]}}')
    found = read(tmp_path / "a.json", columns={"messages": "turns"})
    assert [item.conversation[0].text for item in found if isinstance(item, Example)] == [*"01345", *"012345"]
    [reject] = [item for item in found if isinstance(item, Reject)]
    assert (reject.reason, reject.place) == ("bad_json", f"{tmp_path}/a.json:4")


LARGE_OBJECT = """
import sys
from pathlib import Path
from chatmill.datasets.formats.containers import rows_of
rows = rows_of(Path(sys.argv[1]), columns=["q", "a"])
count = sum(1 for row in rows)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(count, peak)  # of this program alone: that of getrusage begins with the memory of the one that starts it
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Where is it? ", "客" * 4])
def test_lists_in_an_object_take_little_memory_at_any_size(tmp_path, text):
    with (tmp_path / "a.json").open("w", encoding="utf-8") as out:
        for name in ("train", "test"):
            out.write('{"version": 1, "train": [' if name == "train" else '], "test": [')
            for number in range(60_000):
                out.write(f'{", " * bool(number)}{{"q": "{text * 60}", "a": "{number}"}}')
        out.write("]}")
    assert (tmp_path / "a.json").stat().st_size > 80_000_000
    command = [sys.executable, "-c", LARGE_OBJECT, str(tmp_path / "a.json")]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    count, peak = map(int, output.stdout.split())
    assert count == 120_000
    assert peak < 250_000  # KB


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_may_be_a_row(tmp_path, indent):
    for row in ({"turns": TURNS}, {"id": 7, "turns": TURNS}, {"turns": TURNS, "meta": {"a": 1}}):
        (tmp_path / "a.json").write_text(json.dumps(row, indent=indent) * 1)
        assert rendered(read(tmp_path / "a.json", columns={"messages": "turns"})) == [PAIR]
    lines = "".join(json.dumps({"turns": TURNS, "meta": {"a": i}}) + "\n" for i in range(3))
    (tmp_path / "a.json").write_text(lines)
    assert len(read(tmp_path / "a.json", columns={"messages": "turns"})) == 3


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_a_column_name_twice_is_an_error_as_one_of_them_would_get_lost(tmp_path, name):
    if name == "a.csv":
        (tmp_path / name).write_text("Q,A,A\nx,y,z\n")
    else:
        write_table(tmp_path / name, pa.table([["x"], ["y"], ["z"]], names=["Q", "A", "A"]))
    with pytest.raises(ValueError, match=rf"{name}(:1)?: two columns called 'A': rename one of them"):
        read(tmp_path / name, columns=PAIR_COLUMNS)


def test_columns_without_a_name_are_not_read(tmp_path):
    (tmp_path / "a.csv").write_text("Q,,A,\nx,1,y,2\n")
    [item] = read(tmp_path / "a.csv", columns=PAIR_COLUMNS)
    assert [message.text for message in item.conversation] == ["x", "y"]


@pytest.mark.parametrize(
    ("cell", "lines"), [('"5" nail', [3]), ('"a\nb" c', [3, 4]), ('"x" "y"', [3]), ('"open', [3, 4])]
)
def test_each_line_of_a_cell_that_does_not_end_with_its_quotation_mark_is_a_reject(tmp_path, cell, lines):
    (tmp_path / "a.csv").write_text(f"Q,A\n1,2\nx,{cell}\n3,4\n")
    first, *found = read(tmp_path / "a.csv", columns=PAIR_COLUMNS)
    rejects = [item for item in found if isinstance(item, Reject)]
    assert [(item.place, item.reason) for item in rejects] == [
        (f"{tmp_path}/a.csv:{line}", "bad_row") for line in lines
    ]
    kept = [item.conversation[0].text for item in (first, *found) if isinstance(item, Example)]
    assert kept == (["1"] if cell == '"open' else ["1", "3"])


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([10**8], pa.date32()),
        pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()),
        pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"]),
    ],
)
def test_a_value_that_python_does_not_have_is_named_by_file_and_row(tmp_path, name, values):
    write_table(tmp_path / name, pa.table([["x"], values], names=["Q", "A"]))
    with pytest.raises(ValueError, match=f"{name}:1: unreadable value"):
        read(tmp_path / name, columns=PAIR_COLUMNS)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_a_damaged_table_is_rows_or_an_error_that_names_it(tmp_path, rows, name):
    write(tmp_path / name, rows[:20])
    content = (tmp_path / name).read_bytes()
    for seed in range(300):
        random, damaged = Random(seed), bytearray(content)
        for _ in range(random.choice([1, 5])):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            read(tmp_path / name, columns=COLUMNS)
        except ValueError as error:
            assert str(tmp_path) in str(error), seed


@pytest.mark.parametrize("pattern", ["/tmp/*", "/etc/passwd"])
def test_a_pattern_that_no_file_can_match_is_named(tmp_path, pattern):
    with pytest.raises(ValueError, match=f"files: {re.escape(repr(pattern))}: expected a pattern"):
        files_of(tmp_path, [pattern])


MINE = [{"who": "user", "said": QUESTION}, {"who": "assistant", "said": ANSWER}]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"id": 7, "turns": MINE}, {"messages": "turns", "role": "who", "content": "said"}),
        ({"meta": {"id": 1}, "chat": {"id": 2, "turns": TURNS}}, {"messages": "chat.turns"}),
        ({"q": TURNS[:1], "a": TURNS[1:]}, {"prompt": "q", "response": "a"}),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_each_file_of_a_folder_may_be_one_conversation(tmp_path, row, columns, indent):
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps(row, indent=indent))
    assert rendered(read(tmp_path, columns=columns)) == [PAIR] * 3


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file matches \*"):
        read(tmp_path, columns=COLUMNS)


def test_a_column_that_no_row_has_is_named_but_not_one_of_rows_that_are_rejected(tmp_path):
    columns = {"prompt": "q", "response": "a", "system": "s"}
    assert reject(tmp_path, {"q": 1, "a": ANSWER, "s": SYSTEM}, columns=columns)[0] == "not_text"
    with pytest.raises(ValueError, match=r"columns\.system: no row has the column 's': the last one has 'q', 'a'"):
        items(tmp_path, {"q": QUESTION, "a": ANSWER}, columns=columns)
