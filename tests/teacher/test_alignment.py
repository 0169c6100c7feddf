from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given

from chatmill.conversation import BOS, CONTROL_TOKENS
from chatmill.teacher.model_teacher import Alignment, find_places
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types import bpe, byte, char, sentencepiece, wordpiece
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from support.texts import SAMPLE_TEXT, TEXTS

TRAINED = {  # name: (type, settings, text tokens)
    "bpe": (bpe, {}, 300),
    "larger": (bpe, {"pattern": "gpt2"}, 420),
    "byte": (byte, {}, 256),
    "char": (char, {}, 256 + len(set(SAMPLE_TEXT))),
    "unigram": (sentencepiece, {}, 420),
    "wordpiece": (wordpiece, {}, 640),
}


@pytest.fixture(scope="module")
def tokenizers():
    return {
        name: ChatTokenizer(add_special_tokens(kind.train([SAMPLE_TEXT] * 3, number, kind.Settings(**settings)), []))
        for name, (kind, settings, number) in TRAINED.items()
    }


def align(student, teacher):
    shared = {teacher.special[name]: student.special[name] for name in CONTROL_TOKENS if name != BOS}
    return Alignment(student, teacher, shared)


def lengths(*tokens):
    return np.array([len(token) for token in tokens], int)


def test_a_place_is_in_the_teachers_token_that_covers_its_first_byte():
    places = find_places(lengths("I", " ", "know", "i", "ng", "."), lengths("I", " know", "ing", "."))
    assert places.indices.tolist() == [0, 1, 1, 2, 2, 3]
    assert places.read.tolist() == [0, 0, 1, 0, 1, 0]
    assert not places.crosses.any()
    places = find_places(lengths("I know", "ing."), lengths("I", " know", "ing", "."))
    assert (places.indices.tolist(), places.read.tolist(), places.crosses.tolist()) == ([0, 2], [0, 0], [True, True])


@given(text=TEXTS)
@pytest.mark.parametrize(("student", "teacher"), [("byte", "bpe"), ("bpe", "unigram"), ("wordpiece", "larger")])
def test_what_was_read_precedes_the_place(tokenizers, student, teacher, text):
    student, teacher = tokenizers[student], tokenizers[teacher]
    own, others = ([each.token_bytes[i] for i in each.encode(text)] for each in (student, teacher))
    begin = 0
    for token, index, read, crosses in zip(own, *find_places(lengths(*own), lengths(*others)), strict=True):
        start = len(b"".join(others[:index]))
        assert start + read == begin < start + len(others[index])
        begin += len(token)
        assert crosses == (begin > start + len(others[index]))


@pytest.mark.parametrize("student", ["bpe", "byte", "char", "unigram", "wordpiece"])
def test_a_token_stands_for_the_first_by_which_the_student_writes_its_rest(tokenizers, student):
    student, teacher = tokenizers[student], tokenizers["larger"]
    alignment = align(student, teacher)
    for read in (b"", b" ", b"t", b" t", "é".encode()[:1], b"\xff"):
        found = alignment.candidates(read, inside=False)
        expected = defaultdict(set)
        for i, token in enumerate(teacher.token_bytes):
            rest = token[len(read) :]
            if teacher.is_text[i] and token.startswith(read) and rest:
                expected[first_token(student, rest)].add(i)
        if not read:
            for name in set(CONTROL_TOKENS) - {BOS}:
                expected[student.special[name]].add(teacher.special[name])
        others = expected.pop(None, set())
        groups = np.split(found.ids, found.starts[1:]) if len(found.ids) else []
        assert dict(zip(found.tokens.tolist(), map(set, groups), strict=True)) == expected
        ended = {i for i, token in enumerate(teacher.token_bytes) if teacher.is_text[i] and token == read}
        assert set(found.others.tolist()) == others | ended


def first_token(tokenizer, rest):
    """The first token of a text; None where it begins with a part of a character that has no token of its own."""
    try:
        text = rest.decode()
    except UnicodeDecodeError as error:
        text = rest[: error.start].decode()
    if not text:
        alone = [i for i in np.flatnonzero(tokenizer.is_text) if tokenizer.token_bytes[i] == rest[:1]]
        return int(alone[0]) if tokenizer.vocabulary.type == "byte" else None
    return tokenizer.encode(text)[0]


def test_inside_of_a_word_its_pieces_go_on(tokenizers):
    student = tokenizers["wordpiece"]
    alignment, vocabulary = align(student, tokenizers["larger"]), student.vocabulary
    for inside in (False, True):
        found = alignment.candidates(b" ", inside)
        kinds = {
            vocabulary.kinds[i].name for i in found.tokens if i < student.num_text and vocabulary.tokens[i].isalpha()
        }
        assert kinds == ({"CONTINUATION"} if inside else {"NORMAL"})
