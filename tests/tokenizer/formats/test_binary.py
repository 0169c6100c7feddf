import math
import struct
from contextlib import closing

import pytest

from chatmill.tokenizer.formats.binary import BinaryTokenizer, write_binary
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

# The longest is as long as "{" is a character, which the file begins with.
WORDS = [b"ab", b"abc", "é".encode(), " \U0001f642".encode(), b" " * ord("{")]


def float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def make_vocabulary(extra=()):
    tokens = (*(bytes([byte]) for byte in range(256)), *WORDS, *extra)
    scores = tuple(-1e6 if i < 256 else float32(-math.log(i + 1)) for i in range(len(tokens)))
    merges = ((97, 98), (256, 99), (0xC3, 0xA9))
    text = Vocabulary("bpe", "merge", r"\s+|\S+", tokens, (Kind.NORMAL,) * len(tokens), scores, merges)
    return add_special_tokens(text, [])


VOCABULARY = make_vocabulary()
LARGE = make_vocabulary([f"word{k}".encode() for k in range(4000)])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("binary") / "tokenizer.bin"
    write_binary(VOCABULARY, file)
    return file


def test_the_layout_begins_as_sequential_readers_expect(tmp_path):
    kinds = (Kind.NORMAL, Kind.CONTROL, Kind.CONTROL)
    tiny = Vocabulary("byte", "lookup", None, (b"\xff\x00", b"<|im_end|>", b"<|bos|>"), kinds, (-0.5, -1e6, -1e6))
    write_binary(tiny, tmp_path / "t.bin")
    assert (tmp_path / "t.bin").read_bytes().startswith(
        b"\x0a\0\0\0" b"\x02\0\0\0" b"\x01\0\0\0"
        b"\x00\x00\x00\xbf" b"\x02\0\0\0" b"\xff\x00"
        b"\x00\x24\x74\xc9" b"\x0a\0\0\0" b"<|im_end|>"
        b"\x00\x24\x74\xc9" b"\x07\0\0\0" b"<|bos|>"
        b"\x0c\0\0\0" b"\x16\0\0\0" b"\x28\0\0\0" b"\x37\0\0\0"
        b"\x00\x03\x03" b'{"algorithm": "lookup", '
    )  # fmt: skip


@pytest.mark.parametrize("vocabulary", [VOCABULARY, LARGE], ids=["small", "large"])
def test_reading_inverts_writing(vocabulary, tmp_path):
    write_binary(vocabulary, tmp_path / "t.bin")
    assert read_vocabulary(tmp_path / "t.bin") == vocabulary


def test_a_file_cut_at_any_byte_is_refused(file, tmp_path):
    data = file.read_bytes()
    for length in range(len(data)):
        (tmp_path / "cut.bin").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.bin: not a complete tokenizer\.bin"):
            BinaryTokenizer(tmp_path / "cut.bin")


def test_a_damaged_block_is_told_at_its_first_touch(tmp_path):
    write_binary(LARGE, tmp_path / "t.bin")
    data = bytearray((tmp_path / "t.bin").read_bytes())
    index = LARGE.tokens.index(b"word3000")
    place = data.index(b"word3000")
    data[place] ^= 1
    first = place // 4096 * 4096
    (tmp_path / "t.bin").write_bytes(data)
    with closing(BinaryTokenizer(tmp_path / "t.bin")) as binary:
        assert binary.token_bytes(256) == b"ab"
        for read in (lambda: binary.token_bytes(index), binary.verify, binary.vocabulary):
            with pytest.raises(
                ValueError, match=rf"t\.bin: .*\.bin: damaged in bytes {first} to {first + 4095}: export"
            ):
                read()
