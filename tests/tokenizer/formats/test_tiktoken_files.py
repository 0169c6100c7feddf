import base64
import copyreg
import io
import os
import pickle
import struct
from pathlib import Path

import pytest
import tiktoken
import tiktoken.load

from chatmill.conversation import CONTROL_TOKENS
from chatmill.tokenizer.formats.tiktoken_files import (
    read_tiktoken,
    read_tiktoken_pickle,
    write_tiktoken,
    write_tiktoken_pickle,
)
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.patterns import CHARACTERS, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, merges_by_rank, rank_scores

BYTES = [bytes([byte]) for byte in range(256)]


def make_vocabulary(
    type="bpe", algorithm="merge", pattern=PATTERNS["qwen2"], words=(b"th", b"the", b" the"), merges=()
):
    text = [*BYTES, *words]
    tokens = text + [name.encode() for name in CONTROL_TOKENS]
    tokens += [f"<|unused_{k}|>".encode() for k in range(-len(tokens) % 64)]
    kinds = [Kind.NORMAL] * len(text) + [Kind.CONTROL] * len(CONTROL_TOKENS)
    kinds += [Kind.UNUSED] * (len(tokens) - len(kinds))
    if algorithm == "merge":
        merges = merges or merges_by_rank({token: i for i, token in enumerate(text)})
    scores = rank_scores(tokens, kinds, merges)
    return Vocabulary(type, algorithm, pattern, tuple(tokens), tuple(kinds), scores, tuple(merges))


VOCABULARY = make_vocabulary()
EXPRESSIBLE = {
    "bpe": VOCABULARY,
    "byte": make_vocabulary("byte", "lookup", r"[\s\S]+", words=()),
    "char": make_vocabulary("char", "lookup", CHARACTERS, words=("é".encode(), "語".encode())),
    "whitespace": make_vocabulary("whitespace", "lookup", WORDS, words=(b" the", b"the")),
}
FORMATS = {"pkl": (write_tiktoken_pickle, read_tiktoken_pickle), "tiktoken": (write_tiktoken, read_tiktoken)}


@pytest.mark.parametrize("vocabulary", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
@pytest.mark.parametrize(("write", "read"), FORMATS.values(), ids=FORMATS)
def test_reading_inverts_writing(write, read, vocabulary, tmp_path):
    write(vocabulary, tmp_path / "t")
    assert read(tmp_path / "t") == vocabulary


def test_ranks_are_lines_that_tiktoken_itself_reads(tmp_path):
    write_tiktoken(VOCABULARY, tmp_path / "t.tiktoken")
    lines = (tmp_path / "t.tiktoken").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("AA== 0", f"{base64.b64encode(b' the').decode()} 258")
    assert tiktoken.load.load_tiktoken_bpe(str(tmp_path / "t.tiktoken")) == {
        token: i for i, token in enumerate(VOCABULARY.tokens[:259])
    }


INEXPRESSIBLE = {
    "cannot express wordpiece": make_vocabulary("wordpiece", "wordpiece"),
    "cannot express viterbi": make_vocabulary("sentencepiece", "viterbi", None),
    "needs a split pattern": make_vocabulary(pattern=None),
    "would merge the bytes of b'is'": make_vocabulary("own", "lookup", WORDS, words=(b"is",)),
    "merges have another order": make_vocabulary(words=(b"th", b"ab"), merges=((97, 98), (116, 104))),
}


@pytest.mark.parametrize("reason", INEXPRESSIBLE)
@pytest.mark.parametrize("write", [write_tiktoken, write_tiktoken_pickle])
def test_what_tiktoken_cannot_express_is_refused_and_nothing_written(write, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        write(INEXPRESSIBLE[reason], tmp_path / "t")
    assert not any(tmp_path.iterdir())


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def encoding_state(**changes):
    state = {"name": "x", "pat_str": ".", "mergeable_ranks": {b: i for i, b in enumerate(BYTES)}, "special_tokens": {}}
    return state | changes


class Forger(pickle.Pickler):
    def reducer_override(self, thing):
        if not isinstance(thing, tiktoken.Encoding):
            return NotImplemented
        return copyreg.__newobj__, (tiktoken.Encoding,), self.state


def pickled(state):
    """A pickle of an encoding with any state."""
    buffer = io.BytesIO()
    forger = Forger(buffer, 4)
    forger.state = state
    forger.dump(object.__new__(tiktoken.Encoding))
    return buffer.getvalue()


HOSTILE = {
    "a call": (pickle.dumps(Hostile(os.mkdir, "created")), "it imports posix.mkdir"),
    "8 GiB": (b"\x80\x04\x8e" + struct.pack("<Q", 2**33) + b".", "not a pickled"),
    "bytes after its end": (pickled(encoding_state()) + b"\x80\x04", "bytes after its end"),
    "other fields": (pickled({"name": "x"}), "expected name, pat_str, mergeable_ranks, special_tokens"),
    "ranks of text": (pickled(encoding_state(mergeable_ranks={"a": 0})), "mergeable_ranks: expected a mapping"),
    "huge ids": (pickled(encoding_state(special_tokens={"<s>": 2**31 - 1})), "ids up to 2147483647 for 257 tokens"),
    "ids twice": (pickled(encoding_state(special_tokens={"<s>": 3})), "the id 3 has two tokens"),
    "no bytes": (pickled(encoding_state(mergeable_ranks={b"a": 0})), "no token for the byte 0x00"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles_are_refused_and_nothing_happens(data, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.pkl").write_bytes(data)
    with pytest.raises(ValueError, match=f"t.pkl: .*{message}"):
        read_vocabulary(Path("t.pkl"))
    assert [file.name for file in tmp_path.iterdir()] == ["t.pkl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [("!!!! 259", ":4: not a token in base64"), ("AQ== 259", ":4: .*a duplicate"), ("dGhl x", ":4: ")],
)
def test_a_bad_line_is_named(line, message, tmp_path):
    (tmp_path / "t.tiktoken").write_text(f"AQ== 0\n\nAg== 1\n{line}\n")
    with pytest.raises(ValueError, match=rf"t\.tiktoken{message}"):
        read_vocabulary(tmp_path / "t.tiktoken")


def test_ranks_without_a_pattern_ask_for_one(tmp_path):
    (tmp_path / "own.tiktoken").write_text("AA== 0\n")
    with pytest.raises(ValueError, match=r"own\.tiktoken: .*write own\.tiktoken\.json beside it, .*cl100k_base"):
        read_tiktoken(tmp_path / "own.tiktoken")
