"""Published datasets, read by a mapping of their columns alone and by formats; skipped where these are missing.

The expected numbers of messages are counted by json and csv alone. A mapping cannot read all of some: calls within a
text stay text (gsm8k), and those in annotations are left out (taskmaster4); most answers of mt_bench are in a file of
their own, without the questions.
"""

import csv
import gzip
import json
import re
from collections import Counter, defaultdict
from itertools import cycle

import pytest
import yaml

import prepare
from chatmill.conversation import check_turns, parse
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.records import records as records_of
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.record_files import read_records
from support.paths import SHARED

DATA = SHARED / "chat"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")
LINES = 8  # of a section, with its name and its path
LARGE = ("gsm8k", "korean")
TURNS = "conversations"


def entries(pattern):
    """The rows of JSON files, which are lines or one value."""
    for file in sorted(DATA.glob(pattern)):
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
        value = json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.split("\n") if line]
        yield from value if isinstance(value, list) else [value]


def cells(pattern, delimiter):
    for file in sorted(DATA.glob(pattern)):
        with file.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream, delimiter=delimiter)


def lists(pattern, key):
    """The numbers of messages in a list of each row."""
    return [len(row[key]) for row in entries(pattern)]


def pairs(pattern):
    return [2 for _ in entries(pattern)]


def dailydialog():
    lines = (DATA / "dailydialog/dialogues_test.txt").read_text(encoding="utf-8").split("\n")
    return [line.count("__eou__") for line in lines if line]


def hh():
    texts = [row["chosen"] for row in entries("hh_rlhf/*.gz")]
    return [len(re.findall(r"^(?:Human|Assistant):", text, re.MULTILINE)) for text in texts]


def all_of(message):
    """A message of a tree with all that is below it."""
    return [message, *(one for reply in message["replies"] for one in all_of(reply))]


FLAT = "oasst1/en-validation.jsonl"
OASST = "content: text, rank: rank, deleted: deleted"
SETS = {
    "dailydialog": (
        dailydialog,
        "path: dailydialog/dialogues_test.txt\ncolumns: {messages: .}\nturn_separator: __eou__",
    ),
    "gsm8k": (
        lambda: pairs("gsm8k/t*.jsonl"),
        "path: gsm8k\nfiles: [train.jsonl, test.jsonl, test_socratic.jsonl]\n"
        "columns: {prompt: question, response: answer}",
    ),
    "hh": (hh, "path: hh_rlhf\nfiles: '*.gz'\ncolumns: {messages: chosen, rejected: rejected}"),
    "korean": (
        lambda: [2 for _ in cells("korean_chatbot/*.csv", ",")],
        "path: korean_chatbot/ChatbotData.csv\ncolumns: {prompt: Q, response: A}",
    ),
    "taskmaster": (
        lambda: lists("taskmaster4/*.json", "utterances"),
        "path: taskmaster4\nfiles: '*.json'\ncolumns: {messages: utterances, role: speaker, content: text}",
    ),
    "chitchat": (
        lambda: [sum(map(len, row["messages"])) for row in entries("chitchat_byu_sample/*.json")],
        "path: chitchat_byu_sample\nfiles: '*.json'\nfirst: user\n"
        "columns: {messages: messages, role: sender, content: text}",
    ),
    "glaive": (
        lambda: lists("sharegpt/glaive*.json", TURNS),
        "path: sharegpt\nfiles: 'glaive*'\n"
        "columns: {messages: conversations, role: from, content: value, tools: tools}",
    ),
    "axolotl": (
        lambda: [
            count
            for name in ("", ".missingturns")
            for count in lists(f"axolotl_fixtures/conversation{name}.json", TURNS)
        ],
        "path: axolotl_fixtures\nfiles: [conversation.json, conversation.missingturns.json]\nmax_reject_rate: 0.5\n"
        "columns: {messages: conversations, role: from, content: value}",
    ),
    "json_mode": (
        lambda: [count + 1 for count in lists("messages_jsonl/json_mode*", "messages")],
        "path: messages_jsonl/json_mode_dataset.jsonl\ncolumns: {messages: messages, system: system}",
    ),
    "sft": (
        lambda: lists("messages_jsonl/v1_sft*", "messages"),
        "path: messages_jsonl/v1_sft_demo.jsonl\ncolumns: {messages: messages, train: loss_weight}",
    ),
    "tools": (
        lambda: lists("messages_jsonl/reason_tool*", "messages"),
        "path: messages_jsonl/reason_tool_use_demo_50.jsonl\ncolumns: {messages: messages, tools: tools}",
    ),
    "scenarios": (
        lambda: [2 for _ in cells("personality_chat/Scenario*.tsv", "\t")],
        "path: personality_chat\nfiles: 'Scenario*'\ncolumns: {prompt: Scenario, response: Response}",
    ),
    "trees": (
        lambda: [len(all_of(row["prompt"])) for row in entries("oasst1/en_100_tree.jsonl")],
        f"path: oasst1/en_100_tree.jsonl\ncolumns: {{messages: prompt, replies: replies, {OASST}}}",
    ),
    "roots": (
        lambda: [len(all_of(row)) for row in entries("oasst1/en_100_message.jsonl")],
        f"path: oasst1/en_100_message.jsonl\ncolumns: {{messages: ., replies: replies, {OASST}}}",
    ),
    "replies": (
        lambda: [*Counter(row["message_tree_id"] for row in entries(FLAT)).values()],
        f"path: {FLAT}\ncolumns: {{id: message_id, parent: parent_id, {OASST}}}",
    ),
    "replies_by_tree": (
        lambda: [*Counter(row["message_tree_id"] for row in entries(FLAT)).values()],
        f"path: {FLAT}\ncolumns: {{id: message_id, parent: parent_id, tree: message_tree_id, {OASST}}}",
    ),
    "mt_bench": (
        lambda: [len(row["turns"]) + len(row.get("reference", [])) for row in entries("mt_bench/mt_bench_q*.jsonl")],
        "path: mt_bench/mt_bench_question.jsonl\ncolumns: {prompt: turns, response: reference}\nmax_reject_rate: 0.7",
    ),
}
SETS["tulu"] = (
    lambda: [1 + count for count in lists("messages_jsonl/eval_instances*", "completions")],
    "path: messages_jsonl/eval_instances_tulu_1.jsonl\n"
    "columns: {prompt: prompt, response: completions, role: model, content: completion}\n"
    "roles: {assistant: tulu_65B, ignore: [chatgpt, tulu_7B, tulu_human_only_65B]}",
)
REJECTED = {  # messages by reason
    "dailydialog": {"after_last_answer": 340},
    "hh": {"empty_turn": 10},
    "taskmaster": {"after_last_answer": 22},
    "chitchat": {"after_last_answer": 3},
    "glaive": {"tool_order": 12},
    "axolotl": {"empty_turn": 12},
    "tulu": {"ignored_role": 996},
    "trees": {"other_reply": 844, "after_last_answer": 39},
    "roots": {"other_reply": 844, "after_last_answer": 39},
    "replies": {"other_reply": 1367, "after_last_answer": 62, "deleted": 40, "orphan": 3},
    "mt_bench": {"missing_field": 82, "empty_turn": 32},
}
REJECTED["replies_by_tree"] = REJECTED["replies"]
LEFT_OUT = {"hh": 4, "glaive": 2, "axolotl": 1, "replies": 3, "replies_by_tree": 3, "mt_bench": 49}  # conversations


def read(folder, name, section, path=None):
    """The records and the counts of a dataset with such a section in params.yaml."""
    assert len(section.splitlines()) + 1 <= LINES
    parameters = {"format": "table"} | yaml.safe_load(section)
    outputs = [folder / f"{name}.{suffix}" for suffix in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*outputs, parameters=parameters | {"path": path or DATA / parameters["path"]})
    return list(read_records(outputs[0])), json.loads(outputs[2].read_text())["counts"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in SETS])
def test_every_message_is_kept_or_counted(tmp_path, name):
    count, section = SETS[name]
    records, counts = read(tmp_path, name, section)
    found, expected = counts["messages"], count()
    assert len(records) == len(expected) - LEFT_OUT.get(name, 0)
    assert found["rejected"] == REJECTED.get(name, {})
    assert found["read"] == sum(expected) == found["kept"] + sum(found["rejected"].values())
    for record in records[::20]:
        check_turns(parse(record.text))


def best_path(message, below):
    """The texts from a message along the best ranked replies, to the last one of the assistant."""
    replies = [reply for reply in below(message) if not reply["deleted"]]
    replies.sort(key=lambda reply: (reply.get("rank") is None, reply.get("rank")))
    rest = best_path(replies[0], below) if replies else []
    return [message["text"], *rest] if rest or message["role"] == "assistant" else []


def nested_paths(pattern):
    for row in entries(pattern):
        yield best_path(row.get("prompt", row), lambda message: message["replies"])


def paths_of_rows():
    below = defaultdict(list)
    for row in entries(FLAT):
        below[row["parent_id"]].append(row)
    for root in below[None]:
        yield best_path(root, lambda message: below[message["message_id"]])


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("trees", lambda: nested_paths("oasst1/en_100_tree.jsonl")),
        ("roots", lambda: nested_paths("oasst1/en_100_message.jsonl")),
        ("replies", paths_of_rows),
        ("replies_by_tree", paths_of_rows),
    ],
)
def test_trees_are_read_along_their_best_replies_as_the_format_oasst_does(tmp_path, name, paths):
    section = SETS[name][1]
    records, counts = read(tmp_path, name, section)
    found = [[(message.role, message.text) for message in parse(record.text)] for record in records]
    assert found == [list(zip(cycle(("user", "assistant")), path)) for path in paths()]
    preset = read(tmp_path, name, f"format: oasst\n{section.partition(chr(10))[0]}")
    assert preset == (records, counts)


def test_all_bytes_of_rows_that_are_messages_are_kept_or_counted(tmp_path):
    _, counts = read(tmp_path, "replies", SETS["replies"][1])
    sizes = counts["bytes"]
    assert sum(len(row["text"].encode()) for row in entries(FLAT)) == sizes["read"]
    assert sizes["read"] == sizes["kept"] + sum(sizes["rejected"].values())


# by formats, whose rejects of an entry are as many as are listed

FILES = [
    ("dailydialog", "dailydialog/dialogues_test.txt", {"accepted": 1000}),
    ("dolly", "dolly_15k/databricks-dolly-15k.en.jsonl", {"accepted": 15015}),
    ("gsm8k", "gsm8k/train.jsonl", {"accepted": 7473}),
    ("gsm8k", "gsm8k/test.jsonl", {"accepted": 1318, "bad_call": 1}),
    ("gsm8k", "gsm8k/test_socratic.jsonl", {"accepted": 1318, "bad_call": 1}),
    ("hh", "hh_rlhf/harmless-base_test.jsonl.gz", {"accepted": 2308, "empty_turn": 4}),
    ("chitchat", "chitchat_byu_sample/sample_conversation.json", {"accepted": 1}),
    ("sharegpt", "sharegpt/dummy_conversation.json", {"accepted": 500}),
    ("sharegpt", "sharegpt/glaive_toolcall_en_demo.json", {"accepted": 300}),
    ("sharegpt", "sharegpt/glaive_toolcall_zh_demo.json", {"accepted": 298, "tool_order": 2}),
    ("sharegpt", "axolotl_fixtures/conversation.json", {"accepted": 1}),
    ("sharegpt", "axolotl_fixtures/conversation.missingturns.json", {"empty_turn": 1}),
    ("alpaca", "axolotl_fixtures/alpaca/alpaca.json", {"accepted": 2}),
    ("messages", "messages_jsonl/json_mode_dataset.jsonl", {"accepted": 500}),
    ("messages", "messages_jsonl/small_coqa_10.jsonl", {"accepted": 10}),
    ("messages", "messages_jsonl/v1_sft_demo.jsonl", {"accepted": 500}),
    ("messages", "messages_jsonl/reason_tool_use_demo_50.jsonl", {"accepted": 50}),
    ("messages", "messages_jsonl/mlx_wwdc25_prompt_completion.jsonl", {"accepted": 1800}),
    ("messages", "messages_jsonl/eval_instances_tulu_1.jsonl", {"missing_field": 996}),
    ("personachat", "personality_chat/Queries_Responses_Friendly_QnAMaker.tsv", {"accepted": 165}),
    ("personachat", "personality_chat/Scenario_Responses_Friendly.tsv", {"missing_field": 161}),
]


@pytest.mark.parametrize(("name", "file", "expected"), FILES, ids=[file for _, file, _ in FILES])
def test_every_entry_is_a_conversation_or_is_counted(name, file, expected):
    found = Counter()
    for number, entry in enumerate(records_of("real", SourceParameters(path=DATA / file, format=name), Tally())):
        if isinstance(entry, Reject) and entry.part:
            assert entry.reason == "after_last_answer"
            continue
        found[entry.reason if isinstance(entry, Reject) else "accepted"] += 1
        if not isinstance(entry, Reject) and number % 20 == 0:
            check_turns(parse(entry.text))
    assert found == expected
