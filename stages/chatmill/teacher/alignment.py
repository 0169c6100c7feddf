"""What a teacher with a tokenizer of its own says of the tokens of a student.

Both write the same bytes. A place is where a token of the student begins, in the teacher's token there:

    teacher   |I| know|ing|.|
    student   |I| |know|i|ng|.|      the third begins in " know", after one byte

At a place, those of the teacher's tokens remain that begin with the bytes read, here with a space; each stands for the
first token by which the student writes its other bytes: " known" for "know", and " old" perhaps for "ol".

Shapes: N places, M of the teacher's tokens that stand for some token, U different ones of these.
"""

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.vocabulary import Kind

Integers = NDArray[np.integer[Any]]


class Places(NamedTuple):
    """Where the N tokens of the student begin."""

    indices: Integers  # (N,) which of the teacher's tokens that is in
    read: Integers  # (N,) bytes of this token before the place
    crosses: NDArray[np.bool]  # (N,) whether the student's token ends behind this one


class Candidates(NamedTuple):
    """The teacher's tokens that may stand at a place, sorted by the token of the student that each stands for."""

    ids: Integers  # (M,)
    starts: Integers  # (U,) where those that stand for the same token begin
    tokens: Integers  # (U,) that token
    others: Integers  # ids that share the probability but stand for none


def find_places(student_lengths: Integers, teacher_lengths: Integers) -> Places:
    """The places of a text, given the bytes of its tokens by both tokenizers; a control token counts as one byte."""
    ends, teacher_ends = student_lengths.cumsum(), teacher_lengths.cumsum()
    assert np.array_equal(ends[-1:], teacher_ends[-1:]), "the tokens do not cover the same bytes"
    starts = ends - student_lengths
    indices = teacher_ends.searchsorted(starts, side="right")
    return Places(indices, starts - (teacher_ends - teacher_lengths)[indices], ends > teacher_ends[indices])


class Alignment:
    """What the tokens of a teacher stand for among those of a student; `controls` says it of its control tokens.

    A word piece is looked for as a tokenizer of that type does it: the longest that fits, inside of a word or not.
    """

    def __init__(self, student: ChatTokenizer, teacher: ChatTokenizer, controls: Mapping[int, int]) -> None:
        self.student, self.vocab_size, self.controls = student, teacher.vocab_size, controls
        self.is_identity = student.fingerprint == teacher.fingerprint
        of_text = sorted((token, i) for i, token in enumerate(teacher.token_bytes) if teacher.is_text[i])
        self.sorted_tokens, self.sorted_ids = [token for token, _ in of_text], [i for _, i in of_text]
        self.longest = max(map(len, student.token_bytes))
        self.has_word_pieces = student.vocabulary.algorithm == "wordpiece"
        self.by_bytes: dict[tuple[bytes, bool], int] = {}
        for i, (token, kind) in enumerate(zip(student.vocabulary.tokens, student.vocabulary.kinds, strict=True)):
            if student.is_text[i]:
                self.by_bytes.setdefault((token, kind == Kind.CONTINUATION), i)
        self.is_of_bytes = all(len(token) == 1 for token, _ in self.by_bytes)
        self.candidates = cache(self._candidates)

    def _candidates(self, read: bytes, inside: bool) -> Candidates:
        """The candidates after these bytes of a token, which end inside of a word or not."""
        if self.is_identity:
            everything = np.arange(self.vocab_size)
            return Candidates(everything, everything, everything, everything[:0])
        first, last = bisect_left(self.sorted_tokens, read), self._end_of(read)
        ids, rests = self.sorted_ids[first:last], [token[len(read) :] for token in self.sorted_tokens[first:last]]
        ended = sum(not rest for rest in rests)
        tokens = [-1] * ended + self._first_tokens(rests[ended:], inside)
        if not read:
            ids, tokens = [*ids, *self.controls.keys()], [*tokens, *self.controls.values()]
        pairs = np.array(sorted(zip(tokens, ids, strict=True)), np.int64).reshape(-1, 2)
        others, known = (pairs[chosen] for chosen in (pairs[:, 0] < 0, pairs[:, 0] >= 0))
        different, starts = np.unique(known[:, 0], return_index=True)
        return Candidates(known[:, 1], starts, different, others[:, 1])

    def _end_of(self, read: bytes) -> int:
        """The end of the tokens that begin with these bytes."""
        if not (begin := read.rstrip(b"\xff")):
            return len(self.sorted_tokens)
        return bisect_left(self.sorted_tokens, begin[:-1] + bytes([begin[-1] + 1]))

    def _first_tokens(self, rests: list[bytes], inside: bool) -> list[int]:
        """The first of the student's tokens for each text; -1 where the text begins with a part of a character."""
        if self.is_of_bytes:
            return [self.by_bytes.get((rest[:1], False), -1) for rest in rests]
        texts = [_whole_characters(rest) for rest in rests]
        if self.has_word_pieces:
            return [self._longest_piece(text.encode(), inside) for text in texts]
        encoded = self.student.encode_flat([text or " " for text in texts])
        firsts = encoded.ids[encoded.offsets[:-1]].tolist()
        return [first if text else -1 for text, first in zip(texts, firsts, strict=True)]

    def _longest_piece(self, text: bytes, inside: bool) -> int:
        continues = inside and _is_letter(text[0]) if text else False
        ends = range(min(len(text), self.longest), 0, -1)
        return next((self.by_bytes[key] for end in ends if (key := (text[:end], continues)) in self.by_bytes), -1)


def may_go_on(byte: int) -> bool:
    """Whether letters after a byte are mostly in the same word as it: a word has the space before it."""
    return byte == ord(" ") or _is_letter(byte)


def _is_letter(byte: int) -> bool:
    """Whether a byte is an ASCII letter, or of another character."""
    return byte >= 128 or chr(byte).isalpha()


def _whole_characters(text: bytes) -> str:
    """The characters before the first that is not whole."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()
