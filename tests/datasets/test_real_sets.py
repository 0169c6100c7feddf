"""Published datasets, read by a mapping of their columns alone; skipped where these are missing.

The expected numbers of messages are counted by json and csv alone. A mapping cannot read all of some: of a tree only
the question and the answers to it (oasst1), and no tree whose messages are rows; calls within a text stay text (gsm8k),
and those in annotations are left out (taskmaster4); mt_bench has no answers, or has them in a list within a list.
"""

import csv
import gzip
import json
import re

import pytest
import yaml

import prepare
from chatmill.conversation.chatml import check_turns, parse, read_records
from support.paths import SHARED

DATA = SHARED / "chat"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")
LINES = 8  # of a section, with its name and its path
LARGE = ("dolly", "gsm8k", "korean")
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


SETS = {
    "dailydialog": (
        dailydialog,
        "path: dailydialog/dialogues_test.txt\ncolumns: {messages: .}\nturn_separator: __eou__",
    ),
    "dolly": (
        lambda: pairs("dolly_15k/*.en.jsonl"),
        "path: dolly_15k/databricks-dolly-15k.en.jsonl\n"
        "columns: {prompt: instruction, query: context, response: response}",
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
    "vicuna": (
        lambda: lists("sharegpt/dummy*.json", TURNS),
        "path: sharegpt/dummy_conversation.json\ncolumns: {messages: conversations, role: from, content: value}",
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
    "alpaca": (
        lambda: pairs("axolotl_fixtures/alpaca/*.json"),
        "path: axolotl_fixtures/alpaca\ncolumns: {prompt: instruction, query: input, response: output}",
    ),
    "json_mode": (
        lambda: [count + 1 for count in lists("messages_jsonl/json_mode*", "messages")],
        "path: messages_jsonl/json_mode_dataset.jsonl\ncolumns: {messages: messages, system: system}",
    ),
    "coqa": (
        lambda: lists("messages_jsonl/small_coqa*", "messages"),
        "path: messages_jsonl/small_coqa_10.jsonl\ncolumns: {messages: messages}",
    ),
    "sft": (
        lambda: lists("messages_jsonl/v1_sft*", "messages"),
        "path: messages_jsonl/v1_sft_demo.jsonl\ncolumns: {messages: messages, train: loss_weight}",
    ),
    "tools": (
        lambda: lists("messages_jsonl/reason_tool*", "messages"),
        "path: messages_jsonl/reason_tool_use_demo_50.jsonl\ncolumns: {messages: messages, tools: tools}",
    ),
    "mlx": (
        lambda: pairs("messages_jsonl/mlx*"),
        "path: messages_jsonl/mlx_wwdc25_prompt_completion.jsonl\ncolumns: {prompt: prompt, response: completion}",
    ),
    "personality": (
        lambda: [2 for _ in cells("personality_chat/Queries*.tsv", "\t")],
        "path: personality_chat\nfiles: 'Queries*'\ncolumns: {prompt: Question, response: Answer}",
    ),
    "scenarios": (
        lambda: [2 for _ in cells("personality_chat/Scenario*.tsv", "\t")],
        "path: personality_chat\nfiles: 'Scenario*'\ncolumns: {prompt: Scenario, response: Response}",
    ),
    "trees": (
        lambda: [1 + len(row["prompt"]["replies"]) for row in entries("oasst1/en_100_tree.jsonl")],
        "path: oasst1/en_100_tree.jsonl\ncolumns: {prompt: prompt.text, response: prompt.replies, content: text}",
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
}
LEFT_OUT = {"hh": 4, "glaive": 2, "axolotl": 1}  # conversations


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in SETS])
def test_every_message_is_kept_or_counted(tmp_path, name):
    count, section = SETS[name]
    assert len(section.splitlines()) + 1 <= LINES
    parameters = yaml.safe_load(section)
    outputs = [tmp_path / f"{name}.{suffix}" for suffix in ("jsonl", "rejects.jsonl", "manifest.json")]
    path = DATA / parameters.pop("path")
    prepare.main(*outputs, parameters={"path": path, "format": "table"} | parameters)
    records, expected = list(read_records(outputs[0])), count()
    found = json.loads(outputs[2].read_text())["counts"]["messages"]
    assert len(records) == len(expected) - LEFT_OUT.get(name, 0)
    assert found["rejected"] == REJECTED.get(name, {})
    assert found["read"] == sum(expected) == found["kept"] + sum(found["rejected"].values())
    for record in records[::20]:
        check_turns(parse(record.text))
