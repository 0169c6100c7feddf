"""The sections of data/recipes.md and data/README.md, on rows of our own in the shape and container of each dataset."""

import gzip
import json
import re

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

import prepare
from chatmill.record_files import read_records
from support.paths import ROOT


def sections(page):
    """The sources of the first block of YAML."""
    return yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, flags=re.DOTALL)[1])["prepare"]


README = (ROOT / "data/README.md").read_text(encoding="utf-8")
_, _, PUBLIC = README.partition("\n## Public datasets")
OFFERED = sections(PUBLIC)
SECTIONS = sections((ROOT / "data/recipes.md").read_text(encoding="utf-8")) | OFFERED
EXAMPLES = sections(README.partition("### Any table")[2]) | sections(README.partition("### One message a row")[2])
LINES = 8  # of a section

Q, A, SYSTEM = "Is it open?", "Yes, until six.", "Be short."
SYSTEM_TEXT = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
PAIR = f"<|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n{A}<|im_end|>\n"
CALL = '<functioncall> {"name": "hours", "arguments": \'{"day": "Monday"}\'}'
ANSWERS = '[{"name": "hours", "arguments": {"day": "Monday"}}]'


def messages(*names, texts=(Q, A), role="role", content="content", **more):
    return [{content: text, role: name} | more for name, text in zip(names, texts, strict=True)]


def turn(name, text, number):
    return {"frames": [], "speaker": name, "turn_id": str(number), "utterance": text}


CHATS = {"messages": messages("user", "assistant")}
FROM = {"role": "from", "content": "value"}
SHAREGPT = messages("human", "gpt", **FROM)
OPENAI = messages("user", "assistant", turn_identifier=1, toxic=False)
ALPACA = {"instruction": Q, "input": "", "output": A}
DATASETS = {  # file, a row, the conversation
    "ultrachat": ("data/train_sft-00000-of-00003.parquet", {"prompt": Q, "prompt_id": "0"} | CHATS, PAIR),
    "openhermes": (
        "openhermes2_5.json",
        {"system_prompt": None, "source": "x", "conversations": [message | {"weight": None} for message in SHAREGPT]},
        PAIR,
    ),
    "slimorca": (
        "oo-labeled_correct.gpt4.sharegpt.jsonl",
        {
            "conversations": [
                {"from": "system", "value": SYSTEM, "weight": None},
                {"from": "human", "value": Q, "weight": 0.0},
                {"from": "gpt", "value": A, "weight": 1.0},
            ]
        },
        SYSTEM_TEXT + PAIR,
    ),
    "tulu": ("data/train-00000-of-00006.parquet", {"id": "a", "source": "b"} | CHATS, PAIR),
    "oasst2": (
        "2023-11-05_oasst2_ready.trees.jsonl.gz",
        {
            "message_tree_id": "a",
            "tree_state": "ready_for_export",
            "prompt": {
                "role": "prompter",
                "text": Q,
                "lang": "en",
                "replies": [
                    {"role": "assistant", "text": "No.", "rank": 1, "replies": []},
                    {"role": "assistant", "text": A, "rank": 0, "replies": []},
                ],
            },
        },
        PAIR,
    ),
    "alpaca": ("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", ALPACA | {"text": f"{Q} {A}"}, PAIR),
    "metamath": (
        "MetaMathQA-395K.json",
        {"type": "GSM_AnsAug", "query": Q, "original_question": Q, "response": A},
        PAIR,
    ),
    "evol_instruct": ("WizardLM_evol_instruct_V2_143k.json", {"idx": "a", "conversations": SHAREGPT}, PAIR),
    "lima": ("train.jsonl", {"conversations": [Q, A], "source": "stackexchange"}, PAIR),
    "no_robots": (
        "data/train-00000-of-00001.parquet",
        {"prompt": Q, "prompt_id": "0", "category": "Chat"} | CHATS,
        PAIR,
    ),
    "smoltalk": ("data/all/train-00000-of-00009.parquet", {"source": "x"} | CHATS, PAIR),
    "ultrafeedback": (
        "data/train_prefs-00000-of-00001.parquet",
        {
            "prompt": Q,
            "prompt_id": "0",
            "chosen": messages("user", "assistant"),
            "rejected": messages("user", "assistant", texts=(Q, "No.")),
            "messages": messages("user", "assistant"),
            "score_chosen": 8.0,
            "score_rejected": 5.0,
        },
        PAIR,
    ),
    "hh_rlhf": (
        "harmless-base/train.jsonl.gz",
        {"chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}", "rejected": f"\n\nHuman: {Q}\n\nAssistant: No."},
        PAIR,
    ),
    "sharegpt": (
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        {"id": "a", "conversations": messages("gpt", "human", "chatgpt", texts=("Hello.", Q, A), **FROM)},
        PAIR,
    ),
    "code_alpaca": ("code_alpaca_20k.json", ALPACA, PAIR),
    "belle": ("Belle_open_source_0.5M.json", ALPACA | {"instruction": f"{Q}\n"}, PAIR.replace(Q, f"{Q}\n")),
    "aya": (
        "data/train-00000-of-00001.parquet",
        {
            "inputs": Q,
            "targets": A,
            "language": "English",
            "language_code": "eng",
            "annotation_type": "original-annotations",
            "user_id": "a",
        },
        PAIR,
    ),
    "wildchat": (
        "data/train-00000-of-00014.parquet",
        {"conversation_hash": "a", "model": "m", "conversation": OPENAI, "turn": 1, "language": "English"},
        PAIR,
    ),
    "lmsys_chat": (
        "data/train-00000-of-00006.parquet",
        {"conversation_id": "a", "model": "m", "conversation": CHATS["messages"], "turn": 1, "language": "English"},
        PAIR,
    ),
    "multiwoz": (
        "dialogues_001.json",
        {"dialogue_id": "a.json", "services": ["hotel"], "turns": [turn("USER", Q, 0), turn("SYSTEM", A, 1)]},
        PAIR,
    ),
    "taskmaster": (
        "data_00.json",
        {
            "conversation_id": "a",
            "utterances": [
                {"index": 0, "speaker": "user", "text": Q, "segments": [], "annotations": []},
                {"index": 1, "speaker": "assistant", "text": A, "segments": [], "annotations": []},
            ],
        },
        PAIR,
    ),
    "soda": ("train.parquet", {"head": "a", "dialogue": [Q, A, "Bye."], "speakers": ["Ana", "Ben", "Ana"]}, PAIR),
    "open_orca": (
        "1M-GPT4-Augmented.parquet",
        {"id": "flan.1", "system_prompt": SYSTEM, "question": Q, "response": A},
        SYSTEM_TEXT + PAIR,
    ),
    "glaive_calls": (
        "glaive-function-calling-v2.json",
        {
            "system": f"SYSTEM: {SYSTEM}",
            "chat": f"USER: {Q}\n\n\nASSISTANT: {CALL} <|endoftext|>\n\n\n"
            f"FUNCTION RESPONSE: 6\n\n\nASSISTANT: {A}\n\n\n",
        },
        f"<|im_start|>system\nSYSTEM: {SYSTEM}<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL} <\\|endoftext|><|im_end|>\n"
        f"<|im_start|>user\n6<|im_end|>\n<|im_start|>assistant\n{A}<|im_end|>\n",
    ),
    "xlam": (
        "xlam_function_calling_60k.json",
        {"id": 0, "query": Q, "answers": ANSWERS, "tools": '[{"name": "hours", "description": "", "parameters": {}}]'},
        f"<|im_start|>system\nTools: hours<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n"
        f"<|im_start|>assistant\n{ANSWERS}<|im_end|>\n",
    ),
    "dailydialog": ("a.txt", f"{Q} __eou__ {A} __eou__\n", PAIR),
    "chitchat": ("a.json", {"messages": [[{"sender": "a", "text": Q}], [{"sender": "b", "text": A}]]}, PAIR),
    "dolly": ("a.jsonl", {"instruction": Q, "context": "It is 5.", "response": A}, PAIR.replace(Q, f"{Q}\n\nIt is 5.")),
    "gsm8k": (
        "a.jsonl",
        {"question": Q, "answer": f"{A}<<6/2=3>>\n#### 3"},
        PAIR.replace(A, f"{A}<|python_start|>6/2<|python_end|><|output_start|>3<|output_end|>\n#### 3"),
    ),
    "tinystories": ("data/train-00000-of-00004.parquet", {"text": Q}, Q),
}


DATASETS["oasst"] = ("a.trees.jsonl.gz", *DATASETS["oasst2"][1:])


def write(file, row, source):
    """Write the row, or the text, twice in the container of the dataset."""
    file.parent.mkdir(parents=True)
    lines = (row if isinstance(row, str) else f"{json.dumps(row, ensure_ascii=False)}\n").encode() * 2
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist([row, row]), file)
    elif file.suffix == ".gz":
        file.write_bytes(gzip.compress(lines))
    elif file.suffix == ".json" and source != "belle":
        file.write_text(json.dumps([row, row], indent=2, ensure_ascii=False), encoding="utf-8")
    else:
        file.write_bytes(lines)


TURNS = [{"who": who, "said": text} for who, text in (("recording", "Wait."), ("Customer", Q), ("supervisor", A))]
LETTER = {"text": f"Hello. <end> {Q} <end> {A} <end>", "lang": "en"}
ROWS = {  # of the examples
    "calls": ("", f"{json.dumps({'dialog': {'turns': TURNS}})}\n"),
    "faq": ("", f'Q,A,n\n{Q},"{A}",1\n'),
    "tickets": ("", f'ticket,sent,from,said\n7,2024-05-31 10,agent,"{A}"\n7,2024-05-31,customer,{Q}\n'),
    "letters_by_day": ("2026-01.parquet", [LETTER, LETTER | {"lang": "de"}]),
}


@pytest.mark.parametrize("source", ROWS)
def test_the_examples_of_a_mapping_read_the_rows_that_they_describe(tmp_path, source):
    section, (part, content) = EXAMPLES[source], ROWS[source]
    path = file = tmp_path / "raw" / section["path"].rpartition("/")[2]
    path.parent.mkdir()
    if part:
        file = path / part
        path.mkdir()
        parquet.write_table(pa.Table.from_pylist(content), file)
    else:
        file.write_text(content, encoding="utf-8")
    outputs = [tmp_path / f"{source}.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*outputs, parameters=section | {"path": path})
    assert [record.text for record in read_records(outputs[0])] == [PAIR]


def test_public_datasets_have_a_licence_and_a_command():
    page = PUBLIC.partition("\n## ")[0]
    assert len(re.findall(r"^\| \[.*\| (?:CC BY|MIT|Apache)", page, flags=re.MULTILINE)) == len(OFFERED)
    for source in OFFERED:
        assert re.search(rf"dvc import-url https?://\S+ data/raw/{source}\.", page)


@pytest.mark.parametrize("source", DATASETS)
def test_a_section_reads_rows_of_the_published_shape(tmp_path, source):
    file, row, expected = DATASETS[source]
    write(tmp_path / source / file, row, source)
    section = SECTIONS[source]
    assert section["path"].partition(".")[0] == f"data/raw/{source}" and len(section) + 1 <= LINES
    outputs = [tmp_path / f"{source}.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*outputs, parameters=section | {"path": tmp_path / source})
    assert [record.text for record in read_records(outputs[0])] == [expected] * 2
