"""Each row is a file of a dataset, and the conversations or the reasons that its format gives."""

import json
import sys

import pytest
import yaml

from chatmill.datasets.formats.example import Document, Reject
from chatmill.datasets.formats.registry import FORMAT_NAMES, read_dataset
from support.mutated_files import check_mutations

JSON = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}'
PAIR = ["u:Hi a:Yo"]


def read(file, name, columns="", limit=None, **options):
    """The entries of a file; the mapping is YAML."""
    return list(read_dataset(file, name, limit=limit, **(yaml.safe_load(columns) or {}), **options))


def shown(item):
    """A conversation as `u:Hi a:(call>output)Yo`, a document as its text, a reject as `! reason line`."""
    if isinstance(item, Reject):
        return f"! {item.reason} {item.place.rpartition(':')[2]}"
    if isinstance(item, Document):
        return f"{item.place.rpartition(':')[2]}:{item.text}"
    marks = {"text": "{}", "call": "({})", "output": "[{}]"}
    return " ".join(
        f"{message.role[0]}:{''.join(marks[part.kind].format(part.text) for part in message.parts)}"
        for message in item.conversation
    )


def lines(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def message(role, content, **fields):
    return {"role": role, "content": content} | fields


def messages(*found, **fields):
    return lines({"messages": [message("user", "x"), *found], **fields})


def call(name, arguments, content="", **fields):
    return message("assistant", content, tool_calls=[{"function": {"name": name, "arguments": arguments}}], **fields)


def parallel(*ids):
    """Calls of functions that are named as their ids."""
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ids]
    return message("assistant", None, tool_calls=calls)


def paired(*names, answer="So."):
    """Two calls, results that name these ids, each of which has it as its text, and the answer."""
    outputs = [message("tool", name or "none", tool_call_id=name) for name in names]
    return messages(parallel("f", "g"), *outputs, message("assistant", answer))


def result(name, text):
    return f'({{"name": "{name}", "arguments": {{}}}})[{text}]'


def sharegpt(*steps):
    return lines({"conversations": [{"from": sender, "value": value} for sender, value in steps]})


def flat(name, parent, role, text, tree="r", **fields):
    ids = {"message_id": name, "parent_id": parent, "message_tree_id": tree}
    return ids | {"role": role, "text": text} | fields


TREE = [
    flat("r", None, "prompter", "Q"),
    flat("a", "r", "assistant", "worse", rank=1),
    flat("b", "r", "assistant", "best", rank=0),
    flat("c", "r", "assistant", "gone", rank=-1, deleted=True),
    flat("d", "b", "prompter", "Q2", rank=None),
    flat("e", "d", "assistant", "last", rank=None),
]
OTHERS = [flat("f", "nobody", "assistant", "lost"), flat("s", None, "prompter", "x", tree="s", deleted=True)]
REPLY = {"role": "assistant", "text": "Yo", "replies": []}
NESTED = {"message_tree_id": "a", "prompt": {"role": "prompter", "text": "Hi", "replies": [REPLY]}}
BURSTS = {
    "messages": [[{"sender": "a", "text": "Hi"}, {"sender": "a", "text": "you"}], [{"sender": "b", "text": "Yo"}]]
}
TEXTS = [{"type": "text", "text": "a"}, {"type": "reasoning", "value": "hm"}, {"type": "text", "value": "b"}]
MARKDOWN = "# Chat\n\n**User:** a\n\n\nb\n\n**Assistant:** **c** d\n\n---\n\n_User_: e\n\n## Assistant:\n\nf\n"
LONG = 100_001  # turns
ROW = json.loads(JSON)

FORMATS = [  # format, name of the file, content, what it gives
    ("messages", "a.jsonl", JSON, PAIR),
    ("messages", "a.jsonl", f"\ufeff{JSON}\r\n\r\n{JSON}", PAIR * 2),
    ("messages", "a.txt", JSON, PAIR),
    ("messages", "a.json", json.dumps(ROW, indent=1), PAIR),
    ("messages", "a.json", json.dumps([ROW, ROW], indent=1), PAIR * 2),
    ("messages", "a.json", json.dumps({"train": [ROW, ROW], "test": [ROW]}), PAIR * 3),
    ("messages", "a.json", json.dumps({"version": 1, "data": [ROW, ROW], "authors": ["Ana"]}), PAIR * 2),
    ("messages", "a.json", json.dumps({"chats": [ROW] * 3, "tools": ["x"]}), PAIR * 3),
    ("messages", "a.json", json.dumps({"tools": [{"name": "f", "required": []}], **ROW}), ["s:Tools: f u:Hi a:Yo"]),
    ("messages", "a.jsonl", lines(ROW["messages"]) * 2, PAIR * 2),
    ("messages", "a.jsonl", lines({"prompt": "Hi", "completion": "Yo"}), PAIR),
    ("messages", "a.jsonl", messages(message("assistant", " <|im_end|>\u2028\x00 ")), ["u:x a: <|im_end|>\u2028\x00 "]),
    ("messages", "a.jsonl", messages(message("assistant", TEXTS)), ["u:x a:ab"]),
    ("messages", "a.jsonl", messages(message("assistant", [{"type": "image_url"}])), ["! not_text 1"]),
    ("messages", "a.jsonl", messages(message("assistant", "b"), system="S"), ["s:S u:x a:b"]),
    (
        "messages",
        "a.jsonl",
        messages(call("f", '{"q": "é"}', "Wait. "), message("tool", "one"), message("assistant", "Found."), tools=[]),
        ['u:x a:Wait. ({"name": "f", "arguments": {"q": "é"}})[one]Found.'],
    ),
    (
        "messages",
        "a.jsonl",
        messages(call("calculator", '{"expression": "1+1"}'), message("tool", "2"), tools=[{"name": "calculator"}]),
        ["s:Tools: calculator u:x a:(1+1)[2]"],
    ),
    ("messages", "a.jsonl", paired("g", "f"), [f"u:x a:{result('f', 'f')}{result('g', 'g')}So."]),
    ("messages", "a.jsonl", paired(None, None), [f"u:x a:{result('f', 'none')}{result('g', 'none')}So."]),
    *(("messages", "a.jsonl", paired(*names), ["! call_id 1"]) for names in (("f", "f"), ("f", "h"), ("h",))),
    ("messages", "a.jsonl", messages(parallel("f", "f"), message("tool", "x")), ["! call_id 1"]),
    (
        "messages",
        "a.jsonl",
        messages(
            message("assistant", "Wait.", function_call={"name": "f", "arguments": "{}"}),
            message("function", "7", name="f"), message("assistant", "So."),
        ),
        [f"u:x a:Wait.{result('f', '7')}So."],
    ),
    ("messages", "a.jsonl", messages(message("robot", "x")), ["! unknown_role 1"]),
    ("messages", "a.jsonl", messages(message("tool", "x")), ["! tool_order 1"]),
    ("messages", "a.jsonl", messages(call("f", "{")), ["! bad_call 1"]),
    ("messages", "a.jsonl", messages(call("f", "[" * 100_000)), ["! bad_call 1"]),
    ("messages", "a.jsonl", messages(message("assistant", "x", tool_calls="a")), ["! bad_call 1"]),
    ("messages", "a.jsonl", messages({"role": "assistant"}), ["! missing_field 1"]),
    ("messages", "a.jsonl", messages(message("assistant", "x", weight=0.5)), ["! bad_flag 1"]),
    ("messages", "a.jsonl", messages(*[message("user", "x")] * LONG), ["! too_long 1"]),
    *(("messages", "a.jsonl", f"{JSON}\n{bad}\n{JSON}", [*PAIR, "! bad_json 2", *PAIR]) for bad in (
        "{", "nul", "{}{}", "[" * 100_000, "1" * 5000, '{"a": 1e}',
    )),
    ("sharegpt", "a.jsonl", sharegpt(("human", "Hi"), ("gpt", "Yo")), PAIR),
    ("sharegpt", "a.jsonl", sharegpt(("human", "x"), ("gpt", "a"), ("gpt", "b")), ["u:x a:a a:b"]),
    (
        "sharegpt",
        "a.jsonl",
        sharegpt(("human", "x"), ("gpt", "W "), ("function_call", "f()"), ("observation", "7"), ("gpt", "It is 7.")),
        ["u:x a:W (f())[7]It is 7."],
    ),
    ("alpaca", "a.jsonl", lines({"instruction": "Hi", "input": "", "output": "Yo"}), PAIR),
    ("alpaca", "a.jsonl", lines({"instruction": "Hi", "input": "9 to 6", "output": "Yo"}), ["u:Hi\n\n9 to 6 a:Yo"]),
    ("alpaca", "a.csv", 'instruction,input,output\nHi,,"Yo"\n', PAIR),
    ("dolly", "a.jsonl", lines({"instruction": "Hi", "context": "9", "response": "Yo"}), ["u:Hi\n\n9 a:Yo"]),
    ("hh", "a.jsonl", lines({"chosen": "\n\nHuman: a\nHuman: b\n\nAssistant: c"}), ["u:a\nHuman: b a:c"]),
    ("hh", "a.jsonl", lines({"chosen": "no marker"}), ["! no_marker 1"]),
    ("gsm8k", "a.jsonl", lines({"question": "x", "answer": "48/2=<<48/2=24>>24"}), ["u:x a:48/2=(48/2)[24]24"]),
    ("gsm8k", "a.jsonl", lines({"question": "x", "answer": "<<3/4=3/4>>3/4"}), ["! bad_call 1"]),
    ("chitchat", "a.json", json.dumps({"id1": BURSTS, "id2": BURSTS}), ["u:Hi\nyou a:Yo"] * 2),
    ("chitchat", "a.json", json.dumps({"prompt": "p", "ratings": {}} | BURSTS), ["u:Hi\nyou a:Yo"]),
    ("chitchat", "a.json", '{"a": [], null: 2}', ["! bad_json 1"]),
    ("oasst", "a.jsonl", lines(*TREE, *OTHERS), ["! orphan 7", "u:Q a:best u:Q2 a:last", "! deleted 8"]),
    ("oasst", "a.jsonl", lines(NESTED, NESTED["prompt"]), PAIR * 2),
    ("dailydialog", "a.txt", "  a ? __eou__ b .  __eou__\n", ["u:  a ? a:b . "]),
    ("dailydialog", "a.txt", "Hi __eou__ Yo\r\n", PAIR),
    ("dailydialog", "a.txt", b"Hi __eou__ Yo\na \xff\nHi __eou__ Yo", [*PAIR, "! not_utf8 2", *PAIR]),
    ("dailydialog", "a.txt", "a __eou__ " * LONG, ["! too_long 1"]),
    ("text", "a.txt", "\nHi\nYo\n\n\na\nb\n", [*PAIR, "u:a a:b"]),
    ("text", "a.txt", b"a\n\xff\nb\n\nHi\nYo\n", ["! not_utf8 2", *PAIR]),
    ("markers", "a.txt", "System: S\nHuman: a\nb\nAssistant: c\n\n", ["s:S u:a\nb a:c"]),
    ("markers", "a.md", MARKDOWN, ["u:a\n\n\nb a:**c** d", "u:e a:f"]),
    ("markers", "a.txt", "User:**a**\n__Assistant__: b\n\nUser: c\nAssistant: d\n", ["u:**a** a:b", "u:c a:d"]),
    ("markers", "a.jsonl", lines({"text": "### Human: Hi\n### Assistant: Yo"}), PAIR),
    ("personachat", "a.csv", ",Persona,Chat\n0,i like tea.,hi\n1,,hi,more\n", ["s:i like tea. u:hi", "! bad_row 3"]),
    ("personachat", "a.csv", 'Persona,chat\n,"Hi\nYo\n"\n', PAIR),
    ("personachat", "a.tsv", "Question\tAnswer\tMetadata\r\nHi\tYo\tx\r\n", PAIR),
    ("documents", "a.txt", "\ufeffOnce\r\n<|im_end|>\n", ["1:Once\n<|im_end|>\n"]),
    ("documents", "a.md", '[laughs] "no": no', ['1:[laughs] "no": no']),
    ("documents", "a.txt", "x" * 60_000 + "\n\n" + "y" * 60_000, ["1:" + "x" * 60_000 + "\n\n", "3:" + "y" * 60_000]),
    ("documents", "a.txt", "ab\u00e9".encode()[:-1], ["! not_utf8 1"]),
    ("documents", "a.csv", 'text,year\n"One,\nmore",1900\n', ["2:One,\nmore"]),
    ("alpaca", "a.csv", 'sep=; \ninstruction;output\n"Hi\u2028";Yo, you\n', ["u:Hi\u2028 a:Yo, you"]),
    ("documents", "a.jsonl", lines({"text": ""}, {"text": None}, {"text": "A"}), ["1:", "! missing_field 2", "3:A"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "content", "expected"), FORMATS, ids=[f"{row[0]}{number}" for number, row in enumerate(FORMATS)]
)
def test_a_file_gives_these_entries(tmp_path, name, file, content, expected):
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert list(map(shown, read(path, name))) == expected


USER, BOT = message("user", "Hi"), message("assistant", "Yo")
MESSAGES, QA = "columns: {messages: m}", "columns: {prompt: q, response: a}"
QAS = "columns: {prompt: q, response: a, system: s}"
CHOSEN = "columns: {prompt: q, chosen: c, rejected: r}"

MAPPINGS = [  # the mapping, a row, what it gives
    (MESSAGES, {"m": [USER, BOT]}, PAIR),
    ("columns: {messages: d.1.turns}", {"d": [{}, {"turns": [USER, BOT]}]}, PAIR),
    ("columns: {messages: d.9.turns}", {"d": [{}, {"turns": [USER, BOT]}]}, ["! missing_field 1"]),
    ("columns: {messages: a.b}", {"a.b": [USER, BOT], "a": {"b": []}}, PAIR),
    (
        "columns: {messages: m, role: author.kind, content: body.text}",
        {"m": [{"author": {"kind": who}, "body": {"text": text}} for who, text in (("user", "Hi"), ("bot", "Yo"))]},
        PAIR,
    ),
    (f"{MESSAGES}\nroles: {{user: '0', assistant: ['1']}}", {"m": [message(0, "Hi"), message(1, "Yo")]}, PAIR),
    (f"{MESSAGES}\nroles: {{assistant: system}}", {"m": [message("USER ", "Hi"), message("System", "Yo")]}, PAIR),
    (f"{MESSAGES}\nroles: {{ignore: narrator}}", {"m": [message("narrator", "Night."), USER, BOT]}, PAIR),
    (f"{MESSAGES}\nfirst: user", {"m": [message("7f", "Hi"), message("c3", "Yo")]}, PAIR),
    (f"{MESSAGES}\nfirst: user", {"m": [message(name, "x") for name in "abc"]}, ["! unknown_role 1"]),
    (MESSAGES, {"m": ["Hi", "Yo"]}, PAIR),
    (f"{MESSAGES}\nfirst: assistant", {"m": ["Hi", "Yo"]}, ["a:Hi u:Yo"]),
    (MESSAGES, {"m": json.dumps([USER, BOT])}, PAIR),
    (MESSAGES, {"m": "user : Hi\n\n bot: Yo\nNote: six"}, ["u:Hi a:Yo\nNote: six"]),
    (f"{MESSAGES}\nroles: {{user: U 1, assistant: U 2}}", {"m": "U 1: Hi\nU 2: Yo\nBot: x"}, ["u:Hi a:Yo\nBot: x"]),
    (f"{MESSAGES}\nturn_separator: __eou__", {"m": "Hi __eou__ Yo __eou__"}, PAIR),
    (MESSAGES, {"m": "**User:** Hi\n\n**Bot**: *Yo*"}, ["u:Hi a:*Yo*"]),
    (MESSAGES, {"m": "no mark"}, ["! no_marker 1"]),
    (MESSAGES, {"m": 3}, ["! missing_field 1"]),
    (MESSAGES, {"m": ["a", 2]}, ["! not_text 1"]),
    (MESSAGES, {"m": [message(None, "x")]}, ["! not_text 1"]),
    (QA, {"q": "Hi", "a": "Yo"}, PAIR),
    (QA, {"q": [USER], "a": [BOT]}, PAIR),
    (QA, {"q": ["a", "c"], "a": ["b", "d"]}, ["u:a a:b u:c a:d"]),
    (QA, {"q": ["a", "c"], "a": "b"}, ["! unequal_lists 1"]),
    (QA, {"q": ["a"], "a": [BOT]}, ["! not_text 1"]),
    (QAS, {"q": "Hi", "a": "Yo", "s": "S"}, ["s:S u:Hi a:Yo"]),
    (QAS, {"q": "Hi", "a": "Yo", "s": ""}, PAIR),
    ("columns: {prompt: q, query: i, response: a}", {"q": "Sort.", "i": "3 1", "a": "1 3"}, ["u:Sort.\n\n3 1 a:1 3"]),
    ("columns: {prompt: q, history: h, response: a}", {"h": [["a", "b"]], "q": "Hi", "a": "Yo"}, ["u:a a:b u:Hi a:Yo"]),
    ("columns: {prompt: q, history: h, response: a}", {"h": 1, "q": "Hi", "a": "Yo"}, ["! missing_field 1"]),
    (CHOSEN, {"q": "Hi", "c": [USER, BOT], "r": "No."}, PAIR),
    (CHOSEN, {"q": [USER], "c": BOT, "r": message("assistant", "No.")}, PAIR),
    ("columns: {messages: t, replies: r, rank: k}", {"t": USER | {"r": [{**BOT, "k": 1}, {**USER, "k": 2}]}}, PAIR),
    ("columns: {messages: t, replies: r}", {"t": USER | {"r": [BOT, BOT | {"r": USER}]}}, ["! missing_field 1"]),
    ("columns: {messages: m, language: l}\nlanguages: [en]", {"m": [], "l": "de"}, ["! language 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("mapping", "row", "expected"), MAPPINGS)
def test_a_row_of_a_table_gives_this_by_its_mapping(tmp_path, mapping, row, expected):
    (tmp_path / "a.jsonl").write_text(lines(row))
    assert list(map(shown, read(tmp_path / "a.jsonl", "table", mapping))) == expected


HEAD, ORDERED = "c,o,role,content,s\n", "columns: {conversation: c, order: o, system: s}"
DATED = [{"c": 1, "o": "2024-05-03T10:00Z", "s": "", **BOT}, {"c": 1, "o": "2024-05-02", "s": "", **USER}]
LOOSE = [{"c": 1, **USER}, {"c": 2, **USER}, USER, {"c": 1, **BOT}]


@pytest.mark.parametrize(
    ("name", "columns", "content", "expected"),
    [
        ("a.csv", ORDERED, f"{HEAD}7,10,bot,Yo\n8,2,bot,b\n7,9,user,Hi,S\n8,1,user,a\n", ["s:S u:Hi a:Yo", "u:a a:b"]),
        ("a.jsonl", ORDERED, lines(*DATED), PAIR),
        ("a.jsonl", "columns: {conversation: c}", lines(*LOOSE), ["! missing_field 3", *PAIR, "u:Hi"]),
        ("a.csv", ORDERED, f"{HEAD}7,last,bot,Yo,\n7,first,user,Hi,\n", ["! bad_order 2"]),
    ],
)  # fmt: skip
def test_rows_that_are_messages_make_conversations_in_their_order(tmp_path, name, columns, content, expected):
    (tmp_path / name).write_text(content)
    assert list(map(shown, read(tmp_path / name, "table", columns))) == expected


@pytest.mark.parametrize("field", ["weight", "train", "meta.learn"])
def test_a_message_says_whether_it_is_trained(tmp_path, field):
    flags = [{"meta": {"learn": flag}} if "." in field else {field: flag} for flag in (0, True)]
    (tmp_path / "a.jsonl").write_text(lines({"m": [USER, BOT | flags[0], USER | flags[1]]}))
    columns = f"columns: {{messages: m{', train: meta.learn' * ('.' in field)}}}"
    [item] = read(tmp_path / "a.jsonl", "table", columns)
    assert [turn.train for turn in item.turns] == [None, False, True]


def test_rows_with_one_value_in_the_column_of_groups_are_one_group(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(*({"q": f"{i}", "a": "Yo", "g": i % 2} for i in range(4))))
    groups = [item.group for item in read(tmp_path / "a.jsonl", "table", "columns: {prompt: q, response: a, group: g}")]
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_parts_of_a_document_are_one_group_and_so_are_documents_of_one_column(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 50_000)
    assert len({part.group for part in read(tmp_path / "a.txt", "documents")}) == 1
    (tmp_path / "a.jsonl").write_text(lines(*({"body": {"en": f"{i}"}, "book": 7} for i in range(2))))
    one, other = read(tmp_path / "a.jsonl", "documents", "columns: {text: body.en, group: book}")
    assert one.text == "0" and one.group == other.group


@pytest.mark.parametrize(
    ("name", "columns", "content", "problem"),
    [
        ("csv", "", "", f"unknown format 'csv': expected one of {', '.join(FORMAT_NAMES)}"),
        ("talk", "", "", "format talk: .* set limit"),
        ("skills", "", "", "format skills: .* set limit"),
        ("table", "", JSON, "format table: needs columns"),
        ("messages", QA, JSON, "format messages: takes no columns"),
        ("documents", MESSAGES, JSON, r"format documents: expected columns\.text"),
        ("table", "columns: {text: t}", JSON, r"format table: columns\.text is of documents"),
        ("table", QAS, '{"q": "Hi", "a": "Yo"}', r"columns\.system: no row has .* 's': the last one has 'q', 'a'"),
        ("table", "columns: {messages: messages, train: los}", JSON, r"columns\.train: no message has 'los'"),
        ("text", "", JSON, "a.json:1: JSON, not text: use the format messages, sharegpt or table"),
        ("text", "", '[["Hi", "Yo"]]', "a.json:1: JSON, not text: use the format messages, sharegpt or table"),
        ("messages", "", JSON.encode("utf-16"), "a.json: UTF-16: convert it to UTF-8, as by iconv"),
        ("messages", "", b'[ "\xff"]', "a.json:1: not UTF-8"),
        ("messages", "", '[\n{},\n{"a": tru}', "a.json:3: not JSON: Expecting value"),
        ("messages", "", "[\n" + "[" * 100_000, "a.json:2: not JSON: maximum recursion depth"),
        ("messages", "", "[{}]\nx", "a.json:2: not JSON: more text after"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_dataset_is_said(tmp_path, name, columns, content, problem):
    (tmp_path / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=problem):
        read(tmp_path / "a.json", name, columns)


HUB = "dataset: team/chats\nrevision: abc\nsplit: train\n"
MAPPED = "columns: {messages: messages}\nroles: {user: [user], assistant: assistant}\n"


@pytest.mark.parametrize("descriptor", [f"{HUB}format: messages\n", HUB + MAPPED])
def test_hub_rows_are_read_in_their_format_or_by_a_mapping(tmp_path, monkeypatch, descriptor):
    (tmp_path / "datasets.py").write_text(f"""def load_dataset(name, config, *, split, revision, streaming):
    assert (name, config, split, revision, streaming) == ("team/chats", None, "train", "abc", True)
    return [{ROW!r}] * 2
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    (tmp_path / "a.yaml").write_text(descriptor)
    found = read(tmp_path / "a.yaml", "hub")
    sys.modules.pop("datasets")
    assert list(map(shown, found)) == PAIR * 2
    assert found[1].place == "team/chats/train:2"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("dataset: a\nsplit: b\nformat: c\n", "a.yaml: revision: Field required: add it"),
        ("a: [", "a.yaml: not YAML"),
        ("text", "a.yaml: "),
        (f"{HUB}format: text", "format 'text' reads lines"),
        (f"{HUB}format: hub", "unknown format 'hub'"),
        (f"{HUB}format: table", "format table: needs columns"),
        (f"{HUB}format: messages", r"needs an extra: pip install 'chatmill\[hf\]'"),
    ],
)
def test_a_wrong_hub_descriptor_is_named_and_so_is_a_missing_library(tmp_path, monkeypatch, content, problem):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ValueError, match=problem):
        read(tmp_path / "a.yaml", "hub")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_all_of_a_mutated_file_is_kept_or_counted(tmp_path, number, record_property, capfd):
    name, file, content, _ = FORMATS[number]
    content = content if isinstance(content, bytes) else content.encode()
    check_mutations(tmp_path / file, content, len(FORMATS), record_property, format=name)
