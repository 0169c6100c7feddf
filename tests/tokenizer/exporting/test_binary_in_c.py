"""A program in C, written by the page on tokenizer.bin, checks the file and gives text the same ids, for every type."""

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

from chatmill.tokenizer.formats.binary import write_binary
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from support.exported import TYPES
from support.paths import ROOT
from support.texts import NAUGHTY, WORDS

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]


def build(program, *flags):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    command = ["cc", *FLAGS, *flags, ROOT / "tests/support/binary_reader.c", "-o", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """The program, compiled without a warning."""
    program = tmp_path_factory.mktemp("binary") / "reader"
    built = build(program)
    assert built.returncode == 0, built.stderr
    return program


def run(program, file, data=b""):
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the end of the process frees its memory
    return subprocess.run([program, file], input=data, env=environment, capture_output=True, timeout=60, check=False)


def encode(program, file, pattern, texts):
    """The ids of each text; it is cut here if there is a pattern, and by the program if there is none."""
    split = Split(Regex(pattern), "removed", invert=True) if pattern else None
    cuts = [[piece for piece, _ in split.pre_tokenize_str(text)] if split else [text] for text in texts]
    pieces = [piece.encode() for cut in cuts for piece in cut]
    result = run(program, file, b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces))
    assert (result.returncode, result.stderr) == (0, b"")
    numbers = iter(np.frombuffer(result.stdout, "<u4").tolist())
    ids = [[i for _ in cut for i in islice(numbers, next(numbers))] for cut in cuts]
    assert next(numbers, None) is None
    return ids


def hard_texts(count):
    """Any characters, words and hostile strings run together, in turn, and the naughty texts."""
    pick = random.Random(2)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    parts = [*WORDS, *(text for text in NAUGHTY if len(text) < 100), " ", "  ", "\n", "\u2581"]
    for _ in range(count // 2):
        yield "".join(chr(pick.randrange(*pick.choice(planes))) for _ in range(pick.randint(1, 40)))
        yield "".join(pick.choices(parts, k=pick.randint(1, 40)))
    yield from NAUGHTY


@pytest.mark.parametrize("exported", TYPES, indirect=True)
def test_every_type_gets_the_same_ids(exported, reader):
    texts, vocabulary = list(hard_texts(4000)), exported.original.vocabulary
    found = encode(reader, exported.out / "tokenizer.bin", vocabulary.pattern, texts)
    expected = exported.original.encode(texts)
    assert [row for row in zip(texts, expected, found, strict=True) if row[1] != row[2]][:3] == []


@pytest.mark.parametrize("exported", ["bpe"], indirect=True)
def test_what_the_page_leaves_to_external_tokenizers_is_refused(exported, reader, tmp_path):
    vocabulary, file = exported.original.vocabulary, tmp_path / "tokenizer.bin"
    changes_text = replace(vocabulary, steps='{"sentencepiece": {"dummy_prefix": true}}')
    finds_tokens = replace(vocabulary, kinds=(*vocabulary.kinds[:-1], Kind.ADDED))
    for changed, reason in [(changes_text, b"steps, which change text"), (finds_tokens, b"has the kind 6")]:
        write_binary(changed, file)
        result = run(reader, file)
        assert result.returncode == 2 and reason in result.stderr
