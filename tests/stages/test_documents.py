"""What the stages make of text without roles, beside conversations and alone."""

import json

import numpy as np
import pytest

import encode
import evaluate
import export_onnx
import mix
import prepare
import train_tokenizer
from chatmill.conversation import IM_END, is_document
from chatmill.encoded.token_files import read_split
from chatmill.record_files import read_records
from support.paths import ANY_FOLDER
from support.tiny import byte_tokenizer
from support.training_runs import run_training, write_teacher

BOOK = "".join(f"Chapter {i}. It was a <|dark|> night, the {i}th.\n\n" for i in range(60))
TOKENIZER = {"type": "byte", "vocab_size": 320, "special_tokens": [], "max_bytes": None, "byte": {}}
EVALUATE = {"max_tokens": 4, "threads": 1, "skill_prompts": 2, "engine_prompts": 1, "compare_tokenizers": []}
EVALUATE |= {"stride": None, "conversations": None, "talk_prompts": 3, "full_size": 10**9}


def prepared(folder, source, format, **parameters):
    file = folder / f"{source}.raw.jsonl"
    files = (folder / f"prepared/{source}.{end}" for end in ("jsonl", "rejects.jsonl", "manifest.json"))
    path = file if file.exists() else folder / source
    prepare.main(*files, parameters={"path": path, "format": format} | parameters)
    return list(read_records(folder / f"prepared/{source}.jsonl"))


def write_raw(folder):
    """A chat, a book of which each chapter is a row, and a folder with a long text."""
    (folder / "prepared").mkdir(parents=True)
    turns = [[("user", f"What is {i}?"), ("assistant", f"It is {i}.")] for i in range(40)]
    chats = [{"messages": [{"role": role, "content": text} for role, text in one]} for one in turns]
    chapters = [{"text": chapter} for chapter in BOOK.split("\n\n") if chapter]
    for name, rows in (("talk", chats), ("book", chapters)):
        (folder / f"{name}.raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "letters").mkdir()
    (folder / "letters/one.md").write_text("Dear friend, the rain <|im_end|> is naïve.\n\n" * 30)
    return folder


SOURCES = {"talk": "messages", "book": "documents", "letters": "documents"}


def run_stages(folder):
    """Everything from the raw data up to the metrics."""
    write_raw(folder)
    for source in SOURCES:
        prepared(folder, source, SOURCES[source], side="train" if source == "letters" else None)
    chat = [folder / f"{name}.jsonl" for name in ("train", "validation", "test")]
    shares = {"validation_share": 0.2, "test_share": 0.2, "near_duplicates": True}
    sections = {source: {"format": format} for source, format in SOURCES.items()}
    mix.main(folder / "prepared", *chat, folder / "manifest.json", folder / "mix.json", prepare=sections, **shares)
    train_tokenizer.main(chat[0], ANY_FOLDER, ANY_FOLDER, folder / "tokenizer", initial=None, parameters=TOKENIZER)
    encode.main(*chat[:2], folder / "tokenizer", folder / "tokens", template="chatml")
    run_training(write_teacher(folder, ngram_order=4), folder)
    export_onnx.main(folder / "model", folder / "onnx", quantize=[])
    (folder / "free.txt").write_text("Hello?\n")
    texts = folder / "free.txt", ANY_FOLDER
    inputs = [chat[2], chat[0], *texts, folder / "tokens", folder / "model", folder / "onnx", ANY_FOLDER, ANY_FOLDER]
    evaluate.main(*inputs, folder / "samples.jsonl", folder / "evaluate.json", initial=None, parameters=EVALUATE)
    return folder


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    return run_stages(tmp_path_factory.mktemp("beside") / "it")


def metrics(folder):
    return json.loads((folder / "evaluate.json").read_text())


def test_blank_and_repetitive_documents_are_rejected(tmp_path):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "book.raw.jsonl").write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in (" \n", "x" * 60_000, "a"))
    )
    assert [one.text for one in prepared(tmp_path, "book", "documents", max_reject_rate=0.9)] == ["a"]
    rejects = map(json.loads, (tmp_path / "prepared/book.rejects.jsonl").read_text().splitlines())
    assert [one["reason"] for one in rejects] == ["empty_document", "long_run"]


def test_documents_are_trained_on_with_their_ends(beside):
    split = read_split(beside / "tokens", "train")
    texts = {record.text for record in read_records(beside / "train.jsonl") if is_document(record.text)}
    found = set()
    for index in np.flatnonzero(split.is_document):
        ids = split.ids[split.offsets[index] + 1 : split.offsets[index + 1]]
        found.add(byte_tokenizer().decode(ids))
    assert found == {f"{text}{IM_END}" for text in texts} and len(found) > 20


def test_documents_have_bits_of_their_own_and_no_part_in_those_of_the_assistant(beside, tmp_path):
    found = metrics(beside)
    counts, sources = found["counts"]["bits_per_byte"], found["bits_per_byte"]["by_source"]
    assert sources.keys() == found["bits_per_byte"]["ngram_by_source"].keys() == {"book", "talk"}
    assert counts["assistant"] == counts["by_source"]["talk"] > 0
    assert counts["all"] == counts["assistant"] + counts["by_source"]["book"]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(one.to_json() for one in read_records(beside / "test.jsonl") if not is_document(one.text)))
    texts, folders = ("train.jsonl", "free.txt"), ("tokens", "model", "onnx")
    inputs = [test, *(beside / name for name in texts), ANY_FOLDER, *(beside / name for name in folders)]
    inputs += [ANY_FOLDER, ANY_FOLDER, tmp_path / "samples.jsonl", tmp_path / "evaluate.json"]
    evaluate.main(*inputs, initial=None, parameters=EVALUATE)
    chats = metrics(tmp_path)
    assert chats["bits_per_byte"]["assistant"] == pytest.approx(found["bits_per_byte"]["assistant"], abs=2e-6)
    assert chats["bits_per_byte"]["all"] == chats["bits_per_byte"]["by_source"]["talk"] == sources["talk"]
    assert chats["stops_rate"] == found["stops_rate"]
    # windows are scored in other batches, whose sums can differ in the last of the six decimals
    assert chats["stop_nats_per_turn"] == pytest.approx(found["stop_nats_per_turn"], abs=1.5e-6)
    assert chats["tokenizer"]["tokens_per_message"] == found["tokenizer"]["tokens_per_message"]
