import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import encode
from chatmill.conversation import (
    IM_END,
    IM_START,
    LossKind,
    Message,
    Part,
    Record,
    conversation_segments,
    record_segments,
    render,
)
from chatmill.encoded.file_encoding import Segmenter
from chatmill.encoded.token_files import (
    EncodedRecords,
    EncodedShard,
    SourceNumbers,
    Sources,
    SplitCounts,
    read_meta,
    read_sources,
    read_split,
    write_split,
)
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


CONTENT = st.text() | st.sampled_from(["x", "<|im_end|>", "<|im_start|>user\n", "<\\", "\n", ""])
PARTS = st.lists(st.builds(Part, st.just("call"), CONTENT), max_size=2)
MESSAGES = st.builds(Message.from_text, st.sampled_from(["system", "user", "assistant"]), CONTENT) | st.builds(
    Message, st.just("assistant"), PARTS.map(lambda calls: (*calls, Part("text", "so")))
)


@given(st.lists(st.tuples(MESSAGES, st.sampled_from([None, False, True]))), st.sampled_from(["chatml", "markers"]))
def test_segments_of_records_follow_their_choice_of_trained_messages(messages, template):
    text, train = render(message for message, _ in messages), [flag for _, flag in messages]
    assert Segmenter(template)(text, train) == record_segments(Record("talk", "1", text, train=train), template)


def test_a_file_of_conversations_and_documents_is_encoded_as_they_say(folder):
    records = [
        Record("talk", "1", render(CONVERSATIONS[0]), train=[None, False]),
        Record("books", "2", "Once <\\|im_end|>"),
        Record("talk", "3", render(CONVERSATIONS[0]), train=[True, None]),
    ]
    (folder / "train.jsonl").write_text("".join(record.to_json() for record in records), encoding="utf-8")
    ids, loss, offsets = split = read_split(run(folder), "train")
    trained = [ids[begin:end][loss[begin:end] == LossKind.TRAINED] for begin, end in pairwise(offsets)]
    texts = list(map(byte_tokenizer().decode, trained))
    assert texts == ["", f"Once <\\|im_end|>{IM_END}", f"Hi{IM_END}Hé!{IM_END}"]
    assert split.is_document.tolist() == [False, True, False]
    assert read_meta(folder / "tokens").conversations["train"] == 3


def test_the_mask_is_the_answer_and_its_end(folder):
    ids, loss, offsets = read_split(run(folder), "train")
    trained = [ids[offsets[i] : offsets[i + 1]][loss[offsets[i] : offsets[i + 1]] == LossKind.TRAINED] for i in (0, 1)]
    texts = list(map(byte_tokenizer().decode, trained))
    assert texts == [f"Hé!{IM_END}", f"<|python_start|>2*3<|python_end|>6{IM_END}"]


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


def test_wide_ids_where_the_vocabulary_needs_them(tmp_path):
    encoded = byte_tokenizer().encode_conversations([conversation_segments(CONVERSATIONS[0])])
    chunk = EncodedRecords(*encoded, Sources(["talk"], np.zeros(1, np.uint16)))
    shards = [EncodedShard(chunk, 7, has_tools) for has_tools in (True, False)]
    counts = write_split(tmp_path, "train", shards, 1 << 17, SourceNumbers())
    split = read_split(tmp_path, "train")
    assert split.ids.dtype == np.uint32
    assert split.offsets.tolist() == [0, len(chunk.ids), 2 * len(chunk.ids)]
    assert counts == SplitCounts(14, 2, 2 * len(chunk.ids), True)


def test_two_runs_write_equal_bytes(folder):
    first = {file.name: file.read_bytes() for file in run(folder).iterdir()}
    (folder / "tokens").rename(folder / "former")
    assert {file.name: file.read_bytes() for file in run(folder).iterdir()} == first


def test_an_empty_validation_split_is_empty(folder):
    (folder / "validation.jsonl").write_text("")
    ids, loss, offsets = read_split(run(folder), "validation")
    assert len(ids) == len(loss) == 0 and offsets.tolist() == [0]


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_is_no_record_is_named_wherever_its_shard_begins(folder, monkeypatch, workers):
    lines = [Record("talk", "g", render(CONVERSATIONS[0])).to_json()] * 50
    lines[41] = '{"text": "x"}\n'
    (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setenv("CHATMILL_WORKERS", str(workers))
    monkeypatch.setattr(encode, "LARGE_BYTES", 1000)
    monkeypatch.setattr("chatmill.encoded.file_encoding.shards_of", partial(shards_of, size=500))
    with pytest.raises(ValueError, match=r"train\.jsonl:42: not a record of a conversation: "):
        run(folder)
