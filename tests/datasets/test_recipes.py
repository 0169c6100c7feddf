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
WEIGHTED = zip(messages("system", "human", "gpt", texts=(SYSTEM, Q, A), **FROM), (None, 0.0, 1.0), strict=True)
OPENAI = {"model": "m", "conversation": messages("user", "assistant", turn_identifier=1, toxic=False), "turn": 1}
OPENAI |= {"language": "English"}
ALPACA = {"instruction": Q, "input": "", "output": A}
REPLIES = [{"role": "assistant", "text": text, "rank": rank, "replies": []} for rank, text in ((1, "No."), (0, A))]
TREE = {"message_tree_id": "a", "tree_state": "ready_for_export"}
TREE |= {"prompt": {"role": "prompter", "text": Q, "lang": "en", "replies": REPLIES}}
RANKED = {"prompt": Q, "prompt_id": "0", "chosen": CHATS["messages"], "score_chosen": 8.0, "score_rejected": 5.0}
RANKED |= {"rejected": messages("user", "assistant", texts=(Q, "No."))} | CHATS
AYA = {"inputs": Q, "targets": A, "language": "English", "language_code": "eng", "user_id": "a"}
UTTERED = [
    {"index": i, "speaker": name, "text": text, "segments": [], "annotations": []}
    for i, (name, text) in enumerate((("user", Q), ("assistant", A)))
]
CALLED = f"USER: {Q}\n\n\nASSISTANT: {CALL} <|endoftext|>\n\n\nFUNCTION RESPONSE: 6\n\n\nASSISTANT: {A}\n\n\n"
TOOLS = '[{"name": "hours", "description": "", "parameters": {}}]'
DATASETS = {  # file, a row
    "ultrachat": ("data/train_sft-00000-of-00003.parquet", {"prompt": Q, "prompt_id": "0"} | CHATS),
    "openhermes": (
        "openhermes2_5.json",
        {"system_prompt": None, "source": "x", "conversations": [message | {"weight": None} for message in SHAREGPT]},
    ),
    "slimorca": (
        "oo-labeled_correct.gpt4.sharegpt.jsonl",
        {"conversations": [message | {"weight": weight} for message, weight in WEIGHTED]},
    ),
    "tulu": ("data/train-00000-of-00006.parquet", {"id": "a", "source": "b"} | CHATS),
    "oasst2": ("2023-11-05_oasst2_ready.trees.jsonl.gz", TREE),
    "oasst": ("a.trees.jsonl.gz", TREE),
    "alpaca": ("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", ALPACA | {"text": f"{Q} {A}"}),
    "metamath": ("MetaMathQA-395K.json", {"type": "GSM_AnsAug", "query": Q, "original_question": Q, "response": A}),
    "evol_instruct": ("WizardLM_evol_instruct_V2_143k.json", {"idx": "a", "conversations": SHAREGPT}),
    "lima": ("train.jsonl", {"conversations": [Q, A], "source": "stackexchange"}),
    "no_robots": ("data/train-00000-of-00001.parquet", {"prompt": Q, "prompt_id": "0", "category": "Chat"} | CHATS),
    "smoltalk": ("data/all/train-00000-of-00009.parquet", {"source": "x"} | CHATS),
    "ultrafeedback": ("data/train_prefs-00000-of-00001.parquet", RANKED),
    "hh_rlhf": (
        "harmless-base/train.jsonl.gz",
        {"chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}", "rejected": f"\n\nHuman: {Q}\n\nAssistant: No."},
    ),
    "sharegpt": (
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        {"id": "a", "conversations": messages("gpt", "human", "chatgpt", texts=("Hello.", Q, A), **FROM)},
    ),
    "code_alpaca": ("code_alpaca_20k.json", ALPACA),
    "belle": ("Belle_open_source_0.5M.json", ALPACA | {"instruction": f"{Q}\n"}),
    "aya": ("data/train-00000-of-00001.parquet", AYA | {"annotation_type": "original-annotations"}),
    "wildchat": ("data/train-00000-of-00014.parquet", {"conversation_hash": "a"} | OPENAI),
    "lmsys_chat": (
        "data/train-00000-of-00006.parquet",
        {"conversation_id": "a"} | OPENAI | {"conversation": CHATS["messages"]},
    ),
    "multiwoz": (
        "dialogues_001.json",
        {"dialogue_id": "a.json", "services": ["hotel"], "turns": [turn("USER", Q, 0), turn("SYSTEM", A, 1)]},
    ),
    "taskmaster": ("data_00.json", {"conversation_id": "a", "utterances": UTTERED}),
    "soda": ("train.parquet", {"head": "a", "dialogue": [Q, A, "Bye."], "speakers": ["Ana", "Ben", "Ana"]}),
    "open_orca": ("1M-GPT4-Augmented.parquet", {"id": "flan.1", "system_prompt": SYSTEM, "question": Q, "response": A}),
    "glaive_calls": ("glaive-function-calling-v2.json", {"system": f"SYSTEM: {SYSTEM}", "chat": CALLED}),
    "xlam": ("xlam_function_calling_60k.json", {"id": 0, "query": Q, "answers": ANSWERS, "tools": TOOLS}),
    "dailydialog": ("a.txt", f"{Q} __eou__ {A} __eou__\n"),
    "chitchat": ("a.json", {"messages": [[{"sender": "a", "text": Q}], [{"sender": "b", "text": A}]]}),
    "dolly": ("a.jsonl", {"instruction": Q, "context": "It is 5.", "response": A}),
    "gsm8k": ("a.jsonl", {"question": Q, "answer": f"{A}<<6/2=3>>\n#### 3"}),
    "tinystories": ("data/train-00000-of-00004.parquet", {"text": Q}),
}
OTHERS = {  # the conversations that are not PAIR
    "slimorca": SYSTEM_TEXT + PAIR,
    "belle": PAIR.replace(Q, f"{Q}\n"),
    "open_orca": SYSTEM_TEXT + PAIR,
    "glaive_calls": f"<|im_start|>system\nSYSTEM: {SYSTEM}<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n"
    f"<|im_start|>assistant\n{CALL} <\\|endoftext|><|im_end|>\n"
    f"<|im_start|>user\n6<|im_end|>\n<|im_start|>assistant\n{A}<|im_end|>\n",
    "xlam": "<|im_start|>system\nTools: hours<|im_end|>\n" + PAIR.replace(A, ANSWERS),
    "dolly": PAIR.replace(Q, f"{Q}\n\nIt is 5."),
    "gsm8k": PAIR.replace(A, f"{A}<|python_start|>6/2<|python_end|><|output_start|>3<|output_end|>\n#### 3"),
    "tinystories": Q,
}


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
    file, row = DATASETS[source]
    write(tmp_path / source / file, row, source)
    section = SECTIONS[source]
    assert section["path"].partition(".")[0] == f"data/raw/{source}" and len(section) + 1 <= LINES
    outputs = [tmp_path / f"{source}.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*outputs, parameters=section | {"path": tmp_path / source})
    assert [record.text for record in read_records(outputs[0])] == [OTHERS.get(source, PAIR)] * 2
