import gzip
import io
import json
import random
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from chatmill.conversation import Conversation, render
from chatmill.datasets.formats import json_document, row_readers, trees
from chatmill.datasets.formats.example import Example, Reject
from chatmill.datasets.formats.registry import FORMAT_NAMES, read_dataset

QUESTION, ANSWER = "Is it open?", "Yes, until six."
PAIR = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
CALL = "<|python_start|>{}<|python_end|><|output_start|>{}<|output_end|>"


def entries(tmp_path, name, content, file="raw.jsonl", limit=None):
    path = tmp_path / file
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_dataset(path, name, limit=limit, seed=0))


def rendered(tmp_path, name, content, file="raw.jsonl"):
    return [render(item.conversation) for item in entries(tmp_path, name, content, file)]


def one_answer(conversation: Conversation) -> str:
    return render(conversation[-1:]).removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")


def answer(tmp_path, name, row):
    [item] = entries(tmp_path, name, json.dumps(row))
    assert isinstance(item, Example), item
    return one_answer(item.conversation)


def reason(tmp_path, name, row):
    [reject] = entries(tmp_path, name, json.dumps([row]))
    assert isinstance(reject, Reject), reject
    return reject.reason


TREE = {"role": "prompter", "text": QUESTION, "replies": [{"role": "assistant", "text": ANSWER, "replies": []}]}
SHAPES = {
    "messages": {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]},
    "sharegpt": {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]},
    "alpaca": {"instruction": QUESTION, "input": "", "output": ANSWER},
    "dolly": {"instruction": QUESTION, "context": "", "response": ANSWER, "category": "open_qa"},
    "hh": {"chosen": f"\n\nHuman: {QUESTION}\n\nAssistant: {ANSWER}", "rejected": "\n\nHuman: a\n\nAssistant: b"},
    "markers": {"text": f"### Human: {QUESTION}\n### Assistant: {ANSWER}"},
    "gsm8k": {"question": QUESTION, "answer": ANSWER},
    "oasst": {"message_tree_id": "a", "prompt": TREE},
}


@pytest.mark.parametrize(("name", "row"), SHAPES.items())
def test_json_lines_and_json_arrays_give_the_same_conversations(tmp_path, name, row):
    assert rendered(tmp_path, name, json.dumps(row) + "\n\n" + json.dumps(row)) == [PAIR, PAIR]
    assert rendered(tmp_path, name, json.dumps([row, row], indent=2), "raw.json") == [PAIR, PAIR]
    assert rendered(tmp_path, name, json.dumps(row, indent=2), "raw.json") == [PAIR]


@pytest.mark.parametrize("name", ["messages", "sharegpt", "alpaca", "dolly", "gsm8k", "hh"])
def test_formats_whose_rows_are_objects_may_be_parquet(tmp_path, name):
    parquet.write_table(pa.Table.from_pylist([SHAPES[name]]), tmp_path / "rows.parquet")
    content = (tmp_path / "rows.parquet").read_bytes()
    assert rendered(tmp_path, name, content, "a.parquet") == rendered(tmp_path, name, json.dumps(SHAPES[name]))


def test_alpaca_may_be_a_csv_file(tmp_path):
    assert rendered(tmp_path, "alpaca", f'instruction,input,output\n{QUESTION},,"{ANSWER}"\n', "a.csv") == [PAIR]


ROW, NO_ROW = SHAPES["messages"], {"name": "calculator"}


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({"train": [ROW, ROW], "test": [ROW]}, 3),
        ({"version": 1, "data": [ROW, ROW], "authors": ["Ana"]}, 2),
        ({"chats": [ROW] * 1002, "tools": [NO_ROW]}, 1002),
        ({"chats": [ROW] * 3, "tools": [NO_ROW], "id": 1}, 0),
        ({"id": 1, "tools": [NO_ROW | {"required": []}], **ROW}, 1),
        ({"tools": [NO_ROW], **ROW}, 1),
    ],
)
def test_an_object_holds_rows_in_lists_or_is_a_row(tmp_path, content, kept):
    found = entries(tmp_path, "messages", json.dumps(content), "a.json")
    assert sum(isinstance(item, Example) for item in found) == kept


def test_json_lines_may_be_named_as_text(tmp_path):
    assert rendered(tmp_path, "messages", json.dumps(SHAPES["messages"]), "a.txt") == [PAIR]


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("dailydialog", "a.txt", f"{QUESTION} __eou__ {ANSWER} __eou__\n"),
        ("dailydialog", "a.txt", f"{QUESTION} __eou__ {ANSWER}\r\n"),
        ("text", "a.txt", f"\n{QUESTION}\n{ANSWER}\n\n"),
        ("markers", "a.txt", f"Human: {QUESTION}\nAssistant: {ANSWER}\n\n"),
        ("personachat", "a.csv", f'Persona,chat\n,"{QUESTION}\n{ANSWER}\n"\n'),
        ("personachat", "a.tsv", f"Question\tAnswer\tMetadata\r\n{QUESTION}\t{ANSWER}\tx\r\n"),
    ],
)
def test_text_and_tables_give_conversations(tmp_path, name, file, content):
    assert rendered(tmp_path, name, content, file) == [PAIR]
    assert rendered(tmp_path, name, b"\xef\xbb\xbf" + content.encode(), file) == [PAIR]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("row", [[], "text", 3, None, {}, {"messages": 1, "text": 2}, {"prompt": None}])
def test_rows_of_another_shape_are_rejected(tmp_path, name, row):
    assert reason(tmp_path, name, row) in ("missing_field", "no_marker", "not_text")


def test_content_is_kept_to_the_last_blank(tmp_path):
    text = "  two  spaces \n\n and <|im_end|> \\ \u2028 \x00 "
    row = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": text}]}
    [item] = entries(tmp_path, "messages", json.dumps(row))
    assert item.conversation[1].text == text


# messages and sharegpt


def test_content_in_parts_is_joined_and_reasoning_is_left_out(tmp_path):
    content = [{"type": "text", "text": "a"}, {"type": "reasoning", "value": "hm"}, {"type": "text", "value": "b"}]
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]}
    assert answer(tmp_path, "messages", row) == "ab"


def test_pictures_are_rejected(tmp_path):
    content = [{"type": "image_url", "image_url": {}}]
    assert reason(tmp_path, "messages", {"messages": [{"role": "user", "content": content}]}) == "not_text"


@pytest.mark.parametrize("name", ["messages", "sharegpt"])
def test_a_system_text_beside_the_messages_opens_the_conversation(tmp_path, name):
    [item] = entries(tmp_path, name, json.dumps({"system": "Be kind."} | SHAPES[name]))
    assert [message.role for message in item.conversation] == ["system", "user", "assistant"]


def test_prompt_and_completion_are_a_pair(tmp_path):
    assert answer(tmp_path, "messages", {"prompt": "x", "completion": ANSWER}) == ANSWER


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_tool_calls_and_their_results_stand_inside_one_turn(tmp_path):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Wait. ", "tool_calls": [call("find", '{"q": "é"}'), call("find", "{}")]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Found."},
    ]
    first = CALL.format('{"name": "find", "arguments": {"q": "é"}}', "one")
    second = CALL.format('{"name": "find", "arguments": {}}', "two")
    assert answer(tmp_path, "messages", {"messages": messages}) == f"Wait. {first}{second}Found."


def test_the_calculator_is_called_with_its_expression(tmp_path):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call("calculator", '{"expression": "1+1"}')]},
        {"role": "tool", "content": "2"},
    ]
    assert answer(tmp_path, "messages", {"messages": messages}) == CALL.format("1+1", "2")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "robot", "content": "x"}, "unknown_role"),
        ({"role": "tool", "content": "x"}, "tool_order"),
        ({"role": "assistant", "content": "x", "tool_calls": [call("a", "{")]}, "bad_call"),
        ({"role": "assistant", "content": "x", "tool_calls": "a"}, "bad_call"),
        ({"role": "assistant", "content": "x", "tool_calls": ["a"]}, "missing_field"),
        ({"role": "assistant"}, "missing_field"),
    ],
)
def test_broken_messages_are_rejected_by_reason(tmp_path, message, expected):
    assert reason(tmp_path, "messages", {"messages": [message]}) == expected


def test_sharegpt_function_calls_stand_inside_one_turn(tmp_path):
    steps = [("human", "x"), ("gpt", "Wait. "), ("function_call", "f()"), ("observation", "7"), ("gpt", "It is 7.")]
    row = {"conversations": [{"from": sender, "value": value} for sender, value in steps]}
    assert answer(tmp_path, "sharegpt", row) == "Wait. " + CALL.format("f()", "7") + "It is 7."


def test_two_answers_in_a_row_stay_two_messages(tmp_path):
    steps = [("human", "x"), ("gpt", "a"), ("gpt", "b")]
    row = {"conversations": [{"from": sender, "value": value} for sender, value in steps]}
    [item] = entries(tmp_path, "sharegpt", json.dumps(row))
    assert [message.text for message in item.conversation] == ["x", "a", "b"]


# the other formats


@pytest.mark.parametrize(("name", "key"), [("alpaca", "input"), ("dolly", "context")])
def test_material_follows_the_instruction_after_a_blank_line(tmp_path, name, key):
    [item] = entries(tmp_path, name, json.dumps(SHAPES[name] | {key: "Hours: 9 to 6"}))
    assert item.conversation[0].text == f"{QUESTION}\n\nHours: 9 to 6"


def test_dailydialog_takes_one_space_on_each_side_of_the_mark(tmp_path):
    [item] = entries(tmp_path, "dailydialog", "  a ? __eou__ b .  __eou__\n")
    assert [message.text for message in item.conversation] == ["  a ?", "b . "]


def test_chitchat_joins_what_one_sender_wrote_in_a_row(tmp_path):
    def burst(sender, *texts):
        return [{"sender": sender, "text": text, "timestamp": "t"} for text in texts]

    conversation = {
        "prompt": "p",
        "ratings": {},
        "messages": [burst("a", "Hi", "you"), burst("b", "Yes"), burst("b", "?")],
    }
    expected = "<|im_start|>user\nHi\nyou<|im_end|>\n<|im_start|>assistant\nYes\n?<|im_end|>\n"
    assert rendered(tmp_path, "chitchat", json.dumps({"id1": conversation, "id2": conversation})) == [expected] * 2
    assert rendered(tmp_path, "chitchat", json.dumps(conversation)) == [expected]


def message(name, parent, role, text, **fields):
    return {"message_id": name, "parent_id": parent, "message_tree_id": "r", "role": role, "text": text} | fields


FLAT = [
    message("r", None, "prompter", "Q"),
    message("a", "r", "assistant", "worse", rank=1),
    message("b", "r", "assistant", "best", rank=0),
    message("c", "r", "assistant", "gone", rank=-1, deleted=True),
    message("d", "b", "prompter", "Q2", rank=None),
    message("e", "d", "assistant", "last", rank=None),
]


def test_oasst_follows_the_best_replies_of_a_flat_tree(tmp_path):
    [item] = entries(tmp_path, "oasst", "\n".join(map(json.dumps, FLAT)))
    assert [message.text for message in item.conversation] == ["Q", "best", "Q2", "last"]


def test_oasst_counts_orphans_and_deleted_roots(tmp_path):
    rows = [*FLAT, message("f", "nobody", "assistant", "lost"), message("s", None, "prompter", "x", deleted=True)]
    rows[-1]["message_tree_id"] = "s"
    found = entries(tmp_path, "oasst", "\n".join(map(json.dumps, rows)))
    assert [type(entry).__name__ for entry in found] == ["Reject", "Example", "Reject"]
    assert [(entry.reason, entry.place[-1]) for entry in (found[0], found[2])] == [("orphan", "7"), ("deleted", "8")]


def test_hh_keeps_lines_that_start_with_a_marker_inside_a_paragraph(tmp_path):
    row = {"chosen": "\n\nHuman: a\nHuman: b\n\nAssistant: c"}
    [item] = entries(tmp_path, "hh", json.dumps(row))
    assert [message.text for message in item.conversation] == ["a\nHuman: b", "c"]


def test_marked_turns_go_on_over_lines(tmp_path):
    [item] = entries(tmp_path, "markers", "System: Be kind.\nHuman: a\nb\nAssistant: c", "a.txt")
    assert [(m.role, m.text) for m in item.conversation] == [
        ("system", "Be kind."),
        ("user", "a\nb"),
        ("assistant", "c"),
    ]


def test_gsm8k_annotations_become_tool_use(tmp_path):
    row = {"question": "x", "answer": "48/2 = <<48/2=24>>24 and $<<.5*2=1>>1.\n#### 24"}
    expected = "48/2 = " + CALL.format("48/2", "24") + "24 and $" + CALL.format(".5*2", "1") + "1.\n#### 24"
    assert answer(tmp_path, "gsm8k", row) == expected


def test_gsm8k_rejects_a_result_that_is_no_number(tmp_path):
    assert reason(tmp_path, "gsm8k", {"question": "x", "answer": "<<3/4=3/4>>3/4"}) == "bad_call"


def test_personas_are_system_messages_and_long_rows_are_rejected(tmp_path):
    found = entries(tmp_path, "personachat", ",persona,Chat\n0,i like tea.,hi\n1,,hi,more\n", "a.csv")
    assert [message.role for message in found[0].conversation] == ["system", "user"]
    assert (found[1].reason, found[1].place) == ("bad_row", f"{tmp_path}/a.csv:3")


# files


def test_unknown_format_lists_the_choices(tmp_path):
    with pytest.raises(ValueError, match=f"unknown format 'csv': expected one of {', '.join(FORMAT_NAMES)}"):
        entries(tmp_path, "csv", "")


def test_yaml_that_is_too_deep_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"a\.yaml: not YAML: nested too deeply, more than 60 levels: flatten it"):
        entries(tmp_path, "skills", "[" * 5_000, "a.yaml", limit=1)


@pytest.mark.parametrize("name", ["skills", "talk"])
def test_generated_conversations_need_a_limit(tmp_path, name):
    with pytest.raises(ValueError, match=f"format {name}: .* set limit"):
        entries(tmp_path, name, "")


def test_limit_takes_the_first_entries(tmp_path):
    assert len(entries(tmp_path, "dailydialog", "a __eou__ b\n" * 5, limit=3)) == 3


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
def test_packed_files_are_read_as_they_are(tmp_path, pack, suffix):
    text = json.dumps(SHAPES["messages"]).encode() + b"\n"
    frames = pack(text * 1000) + pack(text)
    assert rendered(tmp_path, "messages", frames, f"raw.jsonl{suffix}") == [PAIR] * 1001


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data[: len(data) // 2], lambda data: b"{}" + data]
)
def test_damaged_packed_files_are_named(tmp_path, pack, suffix, damage):
    data = damage(pack(json.dumps(SHAPES["messages"]).encode() + b"\n"))
    with pytest.raises(ValueError, match=re.escape(f"raw.jsonl{suffix}: damaged, or not a {suffix} file")):
        entries(tmp_path, "messages", data, f"raw.jsonl{suffix}")


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
def test_a_decompression_bomb_is_refused_with_what_to_do(tmp_path, pack, suffix):
    with pytest.raises(
        ValueError, match=rf"raw\.jsonl\{suffix}: its first [\d,]+ bytes unpack to over 200 times .* unpack it"
    ):
        entries(tmp_path, "messages", pack(bytes(40 << 20)), f"raw.jsonl{suffix}")


def test_a_small_piece_of_a_packed_file_is_unpacked_at_a_time(tmp_path):
    """In 1,000 bytes of zstd there are up to 32 MB; reading them took the square of the time."""
    file, text = tmp_path / "a.zst", random.Random(1).randbytes(100_000) + bytes(20 << 20) + b"end"
    file.write_bytes(zstandard.compress(text))
    with row_readers.open_decompressed(file) as stream:
        assert stream.read(100_000) == text[:100_000]
        assert stream.read() == text[100_000:]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damage_is_named_by_byte(tmp_path, suffix):
    data = (gzip.compress if suffix == ".gz" else zstandard.compress)(random.Random(1).randbytes(50_000))
    with pytest.raises(ValueError, match=r"near byte (2\d|30),\d\d\d"):
        entries(tmp_path, "messages", data[:25_000], f"raw.jsonl{suffix}")


LONG = 100_001
LONG_ROWS = {
    "text": "a\n" * LONG,
    "dailydialog": "a __eou__ " * (LONG - 1),
    "markers": "Human: a\n" * LONG,
    "messages": json.dumps({"messages": [{"role": "user", "content": "a"}] * LONG}),
    "sharegpt": json.dumps({"conversations": [{"from": "human", "value": "a"}] * LONG}),
    "gsm8k": json.dumps({"question": "a", "answer": "<<1=1>>" * LONG}),
    "chitchat": json.dumps({"messages": [[{"sender": "a", "text": "b"}] * LONG]}),
}


@pytest.mark.parametrize(("name", "content"), LONG_ROWS.items(), ids=list(LONG_ROWS))
def test_more_turns_than_memory_should_hold_are_one_reject(tmp_path, name, content):
    [reject] = entries(tmp_path, name, content, "a.txt" if name == "markers" else "a.jsonl")
    assert (reject.reason, reject.detail) == ("too_long", f"{LONG:,} turns: expected at most 100,000")


def test_messages_of_a_flat_tree_beyond_what_memory_should_hold_are_rejects(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "MAX_TREE", 4_020)
    found = entries(tmp_path, "oasst", "\n".join(map(json.dumps, FLAT)))
    assert [getattr(entry, "reason", "") for entry in found] == ["too_long", "too_long", ""]


def test_rows_of_a_table_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(row_readers, "MAX_ROW_BYTES", 20)
    for cells in ("," * 30, '"\n",' * 9):
        with pytest.raises(ValueError, match=r"a\.csv:3: not a table: row longer than 20 characters"):
            entries(tmp_path, "personachat", f"question,answer\na,b\n{cells}\n", "a.csv")


def test_calls_get_their_outputs_in_order_however_many_there_are(tmp_path):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call(str(i), "{}") for i in range(20_000)]},
        *({"role": "tool", "content": f"{i}"} for i in range(20_000)),
    ]
    [item] = entries(tmp_path, "messages", json.dumps({"messages": messages}))
    names = [json.loads(part.text)["name"] if part.kind == "call" else part.text for part in item.conversation[1].parts]
    assert names == [str(i) for i in range(20_000) for _ in range(2)]


def test_arguments_that_are_too_deep_are_rejected(tmp_path):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call("a", "[" * 100_000)]}]
    assert reason(tmp_path, "messages", {"messages": messages}) == "bad_call"


def test_bytes_that_are_not_utf8_are_one_reject_with_their_offset(tmp_path):
    good = b"a __eou__ b\n"
    found = entries(tmp_path, "dailydialog", good + b"a \xff __eou__ b\n" + good)
    assert [type(entry).__name__ for entry in found] == ["Example", "Reject", "Example"]
    assert found[1] == Reject(f"{tmp_path}/raw.jsonl:2", "not_utf8", "not UTF-8 at byte 14 of the file")


@pytest.mark.parametrize("line", ["{", "[1", "nul", "{}{}", "[" * 100_000, "1" * 5000, '{"a": 1e}'])
def test_lines_that_are_not_json_are_rejected_where_they_stand(tmp_path, line):
    [_, reject] = entries(tmp_path, "gsm8k", json.dumps(SHAPES["gsm8k"]) + "\n" + line)
    assert (reject.place, reject.reason) == (f"{tmp_path}/raw.jsonl:2", "bad_json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[\n{}\n{}", "3: not JSON: expected ',' or '\\]'"),
        ('[\n{},\n{"a": tru}', "3: not JSON: Expecting value"),
        ("[\n" + "[" * 100_000, "2: not JSON: maximum recursion depth"),
        ("[" + "1" * 5000, "1: not JSON: Exceeds the limit"),
        ("[{}]\nx", "2: not JSON: more text after"),
        ("{\n", "2: not JSON: Expecting property name"),
        ('{\n"messages": []}\n{\n1', "4: not JSON: Expecting property name"),
    ],
)
def test_a_document_that_is_not_json_is_named_by_line(tmp_path, text, problem):
    with pytest.raises(ValueError, match=rf"raw\.jsonl:{problem}"):
        entries(tmp_path, "messages", text)


@pytest.mark.parametrize("text", ["{[1]: 2}", "{1: 2}", '{"a": [], null: 2}'])
def test_a_key_that_is_no_text_is_not_json(tmp_path, text):
    [reject] = entries(tmp_path, "messages", text, "a.json")
    assert reject.detail.startswith("not JSON: ")
    with pytest.raises(ValueError, match=r"a\.json:1: not JSON: expected a key and ':'"):
        entries(tmp_path, "chitchat", text, "a.json")


def test_an_array_with_broken_entries_is_read_on(tmp_path):
    good = json.dumps(SHAPES["messages"])
    broken = (good[:-9], good.replace(":", "", 1), f'{{"messages": [], {good[1:]}')
    for entry in broken:
        found = entries(tmp_path, "messages", f"[{good},\n{entry},\n{good},\n{good},\n{entry}]", "raw.json")
        assert [getattr(item, "reason", "kept") for item in found] == ["kept", "bad_json", "kept", "kept", "bad_json"]
        assert found[1].place == f"{tmp_path}/raw.json:2"
    found = entries(tmp_path, "messages", f"[{good}\n{good},\n{good}]", "raw.json")
    assert [getattr(item, "reason", "kept") for item in found] == ["kept", "bad_json", "kept"]


def test_a_key_twice_is_a_reject_that_names_it(tmp_path):
    [reject] = entries(tmp_path, "messages", '{"messages": [], "messages": []}')
    assert (reject.reason, reject.detail) == ("bad_json", "not JSON: the key 'messages' twice in one object")


def test_a_key_twice_among_many_is_found_without_comparing_all_with_each_other(tmp_path):
    keys = "".join(f'"k{number}": 1, ' for number in range(100_000))  # takes minutes if they are
    [reject] = entries(tmp_path, "messages", f'{{{keys}"k99999": 2}}')
    assert reject.detail == "not JSON: the key 'k99999' twice in one object"


def test_lines_may_be_lists_of_messages(tmp_path):
    line = json.dumps(SHAPES["messages"]["messages"])
    assert rendered(tmp_path, "messages", f"{line}\n{line}\n") == [PAIR, PAIR]


@pytest.mark.parametrize("name", ["text", "dailydialog"])
def test_text_that_is_json_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"raw\.jsonl:1: JSON, not text: use the format messages, sharegpt or table"):
        entries(tmp_path, name, f"{json.dumps(SHAPES['messages'])}\n" * 2)


@pytest.mark.parametrize("name", ["messages", "text", "personachat", "chitchat"])
def test_utf16_is_said_to_be_utf16(tmp_path, name):
    with pytest.raises(ValueError, match="UTF-16: convert it to UTF-8, as by iconv"):
        entries(tmp_path, name, json.dumps(SHAPES["messages"]).encode("utf-16"))


def test_a_gzip_file_without_its_end_is_said_to_be_damaged(tmp_path):
    packed = gzip.compress(json.dumps(SHAPES["messages"]).encode())
    with pytest.raises(ValueError, match=r"raw\.jsonl\.gz: damaged, or not a \.gz file"):
        entries(tmp_path, "messages", packed[:-8], "raw.jsonl.gz")


def test_an_array_that_is_not_utf8_is_named_by_byte(tmp_path):
    with pytest.raises(ValueError, match=r"raw\.jsonl: not UTF-8 at byte 3"):
        entries(tmp_path, "gsm8k", b'[ "\xff"]')


def test_rows_above_the_bound_are_rejected_and_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(row_readers, "MAX_ROW_BYTES", 20)
    found = entries(tmp_path, "dailydialog", "a __eou__ b\n" + "x" * 65 + "\nc __eou__ d\n")
    assert [getattr(entry, "reason", "") for entry in found] == ["", "too_long", ""]
    assert found[2].place.endswith(":3")
    assert [entry.reason for entry in entries(tmp_path, "text", "aaaaaaaa\n" * 4)] == ["too_long"]


def test_a_block_with_an_unreadable_line_is_one_reject(tmp_path):
    found = entries(tmp_path, "text", b"a\n\xff\nb\n\nc\nd\n")
    assert [getattr(entry, "reason", "") for entry in found] == ["not_utf8", ""]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_a_streamed_document_equals_the_whole_one(document, indent, ascii_only, chunk):
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "_READ_BYTES", chunk)
        found = list(json_document.entries(Path("x"), io.BytesIO(data), 10_000))
    keys, values = [key for _, key, _ in found], [value for _, _, value in found]
    assert values == (document if isinstance(document, list) else list(document.values()))
    assert keys == (list(document) if isinstance(document, dict) else [None] * len(values))


@given(
    st.dictionaries(st.text(max_size=3), st.lists(JSON, max_size=4) | JSON, max_size=4),
    st.none() | st.just(1),
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 5),
)
def test_the_lists_of_an_object_are_streamed_as_they_are(document, indent, ascii_only, chunk, taken):
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "_READ_BYTES", chunk)
        found = {
            key: [entry[2] for entry in islice(value, taken)] if isinstance(value, Iterator) else value
            for _, key, value in json_document.members(Path("x"), io.BytesIO(data), 10_000)
        }
    expected = {key: value[:taken] if isinstance(value, list) else value for key, value in document.items()}
    assert found == expected


@given(st.lists(JSON.map(json.dumps), max_size=5), st.sampled_from(["", " ", "\n"]), st.integers(1, 9))
def test_documents_that_follow_one_another_are_read_one_by_one(documents, blank, chunk):
    data = blank.join(f"[{document}]" for document in documents).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "_READ_BYTES", chunk)
        found = [value for _, value in json_document.values(Path("x"), io.BytesIO(data), 10_000)]
    assert found == [[json.loads(document)] for document in documents]


@given(st.binary(max_size=60))
def test_any_bytes_are_an_error_or_entries(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.write_bytes(data)
    for name in ("messages", "chitchat", "oasst", "personachat", "markers", "text", "dailydialog"):
        try:
            found = list(read_dataset(file, name, limit=None, seed=0))
        except ValueError as error:
            assert str(error).startswith(str(file))
        else:
            assert all(isinstance(entry, Example | Reject) for entry in found)


# the hub


DESCRIPTOR = "dataset: team/chats\nrevision: abc\nsplit: train\nformat: {}\n"


HUB_MAPPING = """dataset: team/chats
revision: abc
split: train
columns: {messages: messages, role: role}
roles: {user: [user], assistant: assistant}
"""


@pytest.mark.parametrize("descriptor", [DESCRIPTOR.format("messages"), HUB_MAPPING], ids=["format", "mapping"])
def test_hub_rows_are_read_in_their_format_or_by_a_mapping(tmp_path, monkeypatch, descriptor):
    module = "def load_dataset(name, config, *, split, revision, streaming):\n"
    module += "    assert (name, config, split, revision, streaming) == ('team/chats', None, 'train', 'abc', True)\n"
    (tmp_path / "datasets.py").write_text(module + f"    return [{SHAPES['messages']!r}] * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    found = entries(tmp_path, "hub", descriptor, "chats.yaml")
    assert [(item.place, render(item.conversation)) for item in found] == [
        ("team/chats/train:1", PAIR),
        ("team/chats/train:2", PAIR),
    ]
    sys.modules.pop("datasets")


def test_hub_rows_may_be_messages_of_trees(tmp_path, monkeypatch):
    (tmp_path / "datasets.py").write_text(f"def load_dataset(*names, **options):\n    return {FLAT!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    columns = "columns: {id: message_id, parent: parent_id, content: text, rank: rank, deleted: deleted}\n"
    [item] = entries(tmp_path, "hub", f"dataset: team/chats\nrevision: abc\nsplit: train\n{columns}", "chats.yaml")
    assert [message.text for message in item.conversation] == ["Q", "best", "Q2", "last"]
    sys.modules.pop("datasets")


def test_a_missing_hub_library_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs an extra: pip install 'chatmill\[hf\]'"):
        entries(tmp_path, "hub", DESCRIPTOR.format("messages"), "chats.yaml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("dataset: a\nsplit: b\nformat: c\n", "chats.yaml: revision: field required"),
        ("a: [", "chats.yaml: not YAML"),
        ("[" * 5_000, "chats.yaml: not YAML: maximum recursion depth"),
        ("text", "chats.yaml: "),
        (DESCRIPTOR.format("text"), "format 'text' reads lines"),
        (DESCRIPTOR.format("hub"), "unknown format 'hub'"),
        (DESCRIPTOR.format("table"), "format table: needs columns"),
    ],
)
def test_a_wrong_hub_descriptor_is_named(tmp_path, content, problem):
    with pytest.raises(ValueError, match=problem):
        entries(tmp_path, "hub", content, "chats.yaml")
