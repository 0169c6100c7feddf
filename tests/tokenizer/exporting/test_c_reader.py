"""A program in C that knows only the layout of the records reads every token, and gives text the same ids."""

import random
import shutil
import struct
import subprocess
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import write_binary
from chatmill.tokenizer.formats.validation import METASPACE_OR_REST
from chatmill.tokenizer.vocabulary.preprocessing import float32
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from support.paths import ROOT
from support.texts import NAUGHTY, REAL, SAMPLE, WORDS, real_lines

READER = ROOT / "tests/support/reader.c"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FILES = pytest.mark.parametrize(("name", "num_numbers"), [("tokenizer.bin", 3), ("tokenizer.llama2c.bin", 1)])
MODES = {
    "byte": "greedy-bytes",
    "bpe": "greedy-bytes",
    "char": "greedy-characters",
    "sentencepiece-bpe": "greedy-characters",
    "unigram": "viterbi",
}


def build(program, source, *flags):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-xc", "-", "-o", program]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """The program, compiled without a warning."""
    program = tmp_path_factory.mktemp("reader") / "reader"
    built = build(program, READER.read_text())
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory):
    """The program, which stops at the first access outside of its memory."""
    program = tmp_path_factory.mktemp("sanitized") / "reader"
    if build(program, "int main(void) { return 0; }", *SANITIZED).returncode or subprocess.run([program]).returncode:
        pytest.skip("this C compiler has no sanitizers")
    built = build(program, READER.read_text(), *SANITIZED)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="session", params=["reader", "sanitized"])
def each_reader(request):
    return request.getfixturevalue(request.param)


def run(program, file, num_numbers, vocab_size, mode, data=b""):
    command = [program, file, str(num_numbers), str(vocab_size), mode]
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the end of the process frees its memory
    return subprocess.run(command, input=data, env=environment, capture_output=True, timeout=60, check=False)


def framed(piece):
    return struct.pack("<I", len(piece)) + piece


def encode(program, file, num_numbers, vocabulary, mode, texts):
    """The ids of each text; it is split into pieces here."""
    split = Split(Regex(vocabulary.pattern or METASPACE_OR_REST), "removed", invert=True)
    pieces = [[piece.encode() for piece, _ in split.pre_tokenize_str(text)] for text in texts]
    data = b"".join(framed(piece) for cut in pieces for piece in cut)
    result = run(program, file, num_numbers, len(vocabulary.tokens), mode, data)
    assert (result.returncode, result.stderr) == (0, b"")
    numbers = iter(np.frombuffer(result.stdout, "<u4").tolist())
    ids = [[i for _ in cut for i in islice(numbers, next(numbers))] for cut in pieces]
    assert next(numbers, None) is None
    return ids


def differences(texts, expected, found):
    """The first few texts with other ids than expected."""
    return [row for row in zip(texts, expected, found, strict=True) if row[1] != row[2]][:3]


def generated_texts(count):
    """Any characters, words and hostile strings run together, and plain words, in turn."""
    pick = random.Random(1)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    parts = [*WORDS, *(text for text in NAUGHTY if len(text) < 100), " ", "  ", "\n"]
    for _ in range(count // 3):
        length = pick.randint(1, 40)
        yield "".join(chr(pick.randrange(*pick.choice(planes))) for _ in range(length))
        yield "".join(pick.choices(parts, k=length))
        yield " ".join(pick.choices(WORDS, k=length))


@FILES
def test_every_token_and_score_is_read_right(exported, reader, name, num_numbers):
    vocabulary = exported.original.vocabulary
    result = run(reader, exported.out / name, num_numbers, len(vocabulary.tokens), "tokens")
    scores = map(struct.Struct("<f").pack, vocabulary.scores)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b"".join(map(bytes.__add__, map(framed, vocabulary.tokens), scores))


@FILES
@pytest.mark.parametrize("exported", MODES, indirect=True)
def test_naughty_and_generated_texts_get_the_same_ids(exported, reader, name, num_numbers):
    original, texts = exported.original, [*NAUGHTY, *generated_texts(6000)]
    found = encode(reader, exported.out / name, num_numbers, original.vocabulary, MODES[exported.name], texts)
    assert differences(texts, original.encode(texts, threads=2), found) == []


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the texts in many languages are not here")
@FILES
@pytest.mark.parametrize("exported", MODES, indirect=True)
def test_real_texts_in_many_languages_get_the_same_ids(exported, reader, name, num_numbers):
    original, texts = exported.original, real_lines(sample=SAMPLE)
    found = encode(reader, exported.out / name, num_numbers, original.vocabulary, MODES[exported.name], texts)
    assert differences(texts, original.encode(texts, threads=2), found) == []
    print(f"{exported.name} {name}: equal on {len(texts):,} texts in C")


@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
@pytest.mark.parametrize("scores", [(-0.1, -0.3, -0.7, -1.1), (-3.3,), (-2.7, -7.1, -11.9)], ids=str)
def test_sums_of_scores_are_rounded_as_sentencepiece_rounds_them(exported, reader, scores, tmp_path):
    """Many cuts have nearly equal sums here, which float32 and float64 put in another order."""
    vocabulary, pick, texts = exported.original.vocabulary, random.Random(1), list(generated_texts(3000))
    pairs = zip(vocabulary.kinds, vocabulary.tokens, vocabulary.scores, strict=True)
    close = tuple(float32(pick.choice(scores) * len(t)) if kind == Kind.NORMAL else score for kind, t, score in pairs)
    vocabulary = replace(vocabulary, scores=close)
    write_binary(vocabulary, tmp_path / "tokenizer.bin")
    found = encode(reader, tmp_path / "tokenizer.bin", 3, vocabulary, "viterbi", texts)
    assert differences(texts, ChatTokenizer(vocabulary).encode(texts, threads=2), found) == []


@pytest.mark.parametrize("exported", ["bpe"], indirect=True)
def test_text_that_is_a_control_tokens_name_keeps_its_ids(exported, reader, tmp_path):
    original, vocabulary = exported.original, exported.original.vocabulary
    texts = [original.decode([i]) for i in range(256, 265)]
    named = (*vocabulary.tokens[: original.num_text], *(text.encode() for text in texts))
    write_binary(replace(vocabulary, tokens=named), tmp_path / "tokenizer.bin")
    found = encode(reader, tmp_path / "tokenizer.bin", 3, vocabulary, "greedy-bytes", texts)
    assert found == original.encode(texts)
    assert [256] in found


class Records:
    """A file's content up to the last record, and where each record starts."""

    def __init__(self, exported, name, num_numbers):
        tokens = exported.original.token_bytes
        self.starts = [4 * num_numbers]
        for token in tokens:
            self.starts.append(self.starts[-1] + 8 + len(token))
        self.data = (exported.out / name).read_bytes()[: self.starts[-1]]
        self.longest = max(map(len, tokens))

    def with_length(self, index, length):
        place = self.starts[index] + 4
        return self.data[:place] + struct.pack("<I", length) + self.data[place + 4 :]


def assert_refused(result, *words):
    assert (result.returncode, result.stdout) == (2, b"")
    assert all(word.encode() in result.stderr for word in words), result.stderr
    assert result.stderr.count(b"\n") == 1


@FILES
@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_what_follows_the_records_is_not_needed(exported, reader, tmp_path, name, num_numbers):
    (tmp_path / name).write_bytes(Records(exported, name, num_numbers).data)
    full, cut = (run(reader, folder / name, num_numbers, 704, "tokens") for folder in (exported.out, tmp_path))
    assert (cut.returncode, cut.stdout) == (0, full.stdout)


@FILES
@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_a_file_cut_inside_the_records_is_refused(exported, each_reader, tmp_path, name, num_numbers):
    records, file = Records(exported, name, num_numbers), tmp_path / name
    for length in (*range(20), *range(20, records.starts[-2], 397), *range(records.starts[-2], records.starts[-1])):
        file.write_bytes(records.data[:length])
        assert_refused(run(each_reader, file, num_numbers, 704, "viterbi"), f"{file}: ", "cut")


@FILES
@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_a_length_that_cannot_be_is_refused(exported, each_reader, tmp_path, name, num_numbers):
    records, file = Records(exported, name, num_numbers), tmp_path / name
    for index in (0, 1, 300, 703):
        file.write_bytes(records.with_length(index, records.longest + 1))
        assert_refused(run(each_reader, file, num_numbers, 704, "tokens"), f"{file}: token {index} has ")
        for length in (len(records.data), 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1):
            file.write_bytes(records.with_length(index, length))
            assert_refused(run(each_reader, file, num_numbers, 704, "tokens"), f"{file}: token {index} has {length}")
            file.write_bytes(b"\xff" * 4 + records.with_length(index, length)[4:])
            assert_refused(run(each_reader, file, num_numbers, 704, "tokens"), f"inside token {index} of {length}")


@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_more_tokens_than_the_file_holds_are_refused(exported, each_reader):
    for vocab_size in (705, 2000, 2**24):
        assert_refused(run(each_reader, exported.out / "tokenizer.llama2c.bin", 1, vocab_size, "tokens"), "llama2c.bin")


@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_pieces_that_are_cut_are_refused(exported, each_reader):
    for data, words in [
        (b"\1", "a length"),
        (b"\2\0\0\0a", "a piece of 2"),
        (b"\xff" * 4, "4294967295 bytes: at most"),
    ]:
        assert_refused(run(each_reader, exported.out / "tokenizer.bin", 3, 704, "viterbi", data), "stdin", words)


@pytest.mark.parametrize("mode", ["greedy-bytes", "greedy-characters", "viterbi"])
@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_altered_bits_and_pieces_that_are_no_text_do_no_harm(exported, sanitized, tmp_path, mode):
    pick, whole = random.Random(1), (exported.out / "tokenizer.bin").read_bytes()
    texts = [
        *(text.encode() for text in generated_texts(30)),
        *(pick.randbytes(30) for _ in range(30)),
        b"\x80",
        b"\xf0",
    ]
    data = b"".join(map(framed, texts))
    for _ in range(60):
        altered = bytearray(whole)
        for _ in range(pick.choice([0, 1, 100])):
            altered[pick.randrange(len(whole))] ^= 1 << pick.randrange(8)
        (tmp_path / "tokenizer.bin").write_bytes(altered)
        result = run(sanitized, tmp_path / "tokenizer.bin", 3, 704, mode, data)
        assert result.returncode == 0 or (result.returncode == 2 and result.stderr.count(b"\n") == 1), result.stderr
