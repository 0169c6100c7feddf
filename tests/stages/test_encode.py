import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import encode
from chatmill.conversation import IM_END, IM_START, Message, Part, Record, conversation_segments, render
from chatmill.encoded.token_files import read_meta, read_sources, read_split
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.workers import shards_of
from support.tiny import VOCABULARY, byte_tokenizer

CONVERSATIONS = [
    [Message.from_text("user", "Hi"), Message.from_text("assistant", "Hé!")],
    [
        Message.from_text("system", "Short."),
        Message.from_text("user", "2*3? <|im_end|>"),
        Message("assistant", (Part("call", "2*3"), Part("output", "6"), Part("text", "6"))),
    ],
]


@pytest.fixture
def folder(tmp_path):
    """Two conversations to train on, one to validate, and a tokenizer of bytes."""
    for split, conversations in (("train", CONVERSATIONS), ("validation", CONVERSATIONS[:1])):
        lines = "".join(Record("talk", "talk/1", render(conversation)).to_json() for conversation in conversations)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    return tmp_path


def run(folder, template="chatml"):
    files = (folder / name for name in ("train.jsonl", "validation.jsonl", "tokenizer", "tokens"))
    encode.main(*files, template=template)
    return folder / "tokens"


@pytest.mark.parametrize("template", ["chatml", "markers"])
@pytest.mark.parametrize("chunk", [1, 4096])
def test_tokens_are_those_of_each_conversation_alone(folder, monkeypatch, template, chunk):
    monkeypatch.setattr("chatmill.encoded.file_encoding.BATCH_RECORDS", chunk)
    ids, loss, offsets = read_split(run(folder, template), "train")
    assert (ids.dtype, loss.dtype, offsets.dtype) == (np.uint16, np.uint8, np.int64)
    for i, conversation in enumerate(CONVERSATIONS):
        expected_ids, expected_loss = byte_tokenizer().encode_segments(conversation_segments(conversation, template))
        part = slice(offsets[i], offsets[i + 1])
        assert ids[part].tolist() == expected_ids and loss[part].tolist() == expected_loss
    assert offsets[-1] == len(ids) == len(loss)


def test_meta_counts_bytes_of_text_without_control_tokens(folder):
    meta = read_meta(run(folder))
    text = render(CONVERSATIONS[0]).replace(IM_START, "").replace(IM_END, "")
    assert meta.bytes["validation"] == len(text.encode())
    assert meta.conversations == {"train": 2, "validation": 1}
    assert meta.fingerprint == VOCABULARY.fingerprint and meta.template == "chatml"


def test_the_source_of_each_conversation_is_recorded(folder):
    named = {"train": ["visits", "é", "visits", "talk"], "validation": ["letters", "talk"]}
    for split, names in named.items():
        lines = "".join(Record(name, "g", render(CONVERSATIONS[0])).to_json() for name in names)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    tokens = run(folder)
    assert read_meta(tokens).sources == ["letters", "talk", "visits", "é"]
    for split, names in named.items():
        sources = read_sources(tokens, split, read_meta(tokens))
        assert sources.of_conversations.dtype == np.uint16
        assert [sources.names[number] for number in sources.of_conversations] == names


def test_no_conversations_to_train_on_are_refused(folder):
    (folder / "train.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"train\.jsonl: no conversations"):
        run(folder)


def test_a_line_that_is_no_conversation_is_named(folder):
    good = (folder / "train.jsonl").read_text(encoding="utf-8")
    bad = replace(Record("talk", "talk/1", ""), text=f"Hi{IM_END}").to_json()
    (folder / "train.jsonl").write_text(good + bad, encoding="utf-8")
    with pytest.raises(ValueError, match=r"train\.jsonl:3: not a rendered conversation"):
        run(folder)


def test_damaged_tokens_are_refused(folder):
    tokens = run(folder)
    (tokens / "meta.json").write_text(json.dumps({"fingerprint": "f"}))
    with pytest.raises(ValueError, match=r"meta\.json is damaged"):
        read_meta(tokens)
    (tokens / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"tokens: no manifest\.json: not written by encode, or incomplete"):
        read_meta(tokens)


@pytest.mark.slow
def test_outputs_do_not_depend_on_how_many_processes_work_nor_on_the_sizes_of_shards(folder, monkeypatch):
    records = [Record(f"of {i % 7}", "g", render(CONVERSATIONS[i % 2])) for i in range(300)]
    (folder / "train.jsonl").write_text("".join(record.to_json() for record in records), encoding="utf-8")
    found = []
    for workers, size in ((1, 10**9), (1, 300), (2, 2_000), (3, 700)):
        monkeypatch.setenv("CHATMILL_WORKERS", str(workers))
        monkeypatch.setattr(encode, "LARGE_BYTES", 1000)
        monkeypatch.setattr("chatmill.encoded.file_encoding.shards_of", partial(shards_of, size=size))
        found.append({file.name: file.read_bytes() for file in run(folder).iterdir()})
        (folder / "tokens").rename(folder / f"of {workers} {size}")
    assert found[0] == found[1] == found[2] == found[3]
