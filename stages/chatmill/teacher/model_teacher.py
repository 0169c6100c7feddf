"""A teacher that is a model, also with a tokenizer other than the student's.

Both write the same bytes. A place is where a token of the student begins, in the teacher's token there:

    teacher   |I| know|ing|.|
    student   |I| |know|i|ng|.|      the third begins in " know", after one byte

At a place inside a teacher's token, only those of its tokens are possible that begin with the bytes already read, here
with a space. Each counts for one token of the student, the first by which it writes the remaining bytes: " known" for
"know", and " old" perhaps for "ol".

Shapes: N places, R tokens that the teacher predicts, V its vocabulary, M of its tokens that each stand for one of the
student's, U different ones of these.
"""

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from chatmill.conversation import BOS, PAD, LossKind, Segment
from chatmill.encoded.token_files import EncodedSplit
from chatmill.evaluation.bits_per_byte import bits_per_byte, default_stride, group_by_size, sliding_windows
from chatmill.model.chat_model import load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.processor import own_processor
from chatmill.teacher.predictions import Predictions
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import stand_ins
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]

# What a teacher with a tokenizer of its own says of the tokens of a student.


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
    """The places of a text, given the numbers of bytes of both tokenizers' tokens; a control token counts as one."""
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
        if self.is_identity:
            everything = np.arange(self.vocab_size)
            return Candidates(everything, everything, everything, everything[:0])
        first = bisect_left(self.sorted_tokens, read)
        last = bisect_right(self.sorted_tokens, read, key=lambda token: token[: len(read)])
        ids, rests = self.sorted_ids[first:last], [token[len(read) :] for token in self.sorted_tokens[first:last]]
        ended = rests.count(b"")  # sorted first: tokens that are exactly the bytes already read
        tokens = [-1] * ended + self._first_tokens(rests[ended:], inside)
        if not read:
            ids, tokens = [*ids, *self.controls.keys()], [*tokens, *self.controls.values()]
        pairs = np.array(sorted(zip(tokens, ids, strict=True)), np.int64).reshape(-1, 2)
        others, known = (pairs[chosen] for chosen in (pairs[:, 0] < 0, pairs[:, 0] >= 0))
        different, starts = np.unique(known[:, 0], return_index=True)
        return Candidates(known[:, 1], starts, different, others[:, 1])

    def _first_tokens(self, rests: list[bytes], inside: bool) -> list[int]:
        """The first of the student's tokens for each text; -1 where the text begins with a part of a character."""
        if self.is_of_bytes:
            return [self.by_bytes.get((rest[:1], False), -1) for rest in rests]
        texts = [_whole_characters(rest) for rest in rests]
        if self.has_word_pieces:
            return [self._longest_piece(text.encode(), inside) for text in texts]
        encoded = self.student.encode([text or " " for text in texts])
        return [ids[0] if text else -1 for text, ids in zip(texts, encoded, strict=True)]

    def _longest_piece(self, text: bytes, inside: bool) -> int:
        continues = inside and _is_letter(text[0]) if text else False
        ends = range(min(len(text), self.longest), 0, -1)
        return next((self.by_bytes[key] for end in ends if (key := (text[:end], continues)) in self.by_bytes), -1)


def _is_letter(byte: int) -> bool:
    return byte >= 128 or chr(byte).isalpha()


def _whole_characters(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


# The likeliest tokens of a student at some places, by a teacher's probabilities there.


def likeliest(
    rows: Floats, places: Integers, candidates: Candidates, left_out: Integers, num_kept: int
) -> tuple[Integers, Floats]:
    """(N, K) the likeliest tokens at places with the same candidates, given their rows of (R, V); and their chances.

    `left_out` (N,) is the teacher's actual token where the student's token ends after it, so that it cannot stand for
    that token, or -1.
    """
    of_places = torch.from_numpy(rows)[places]
    crossing = np.flatnonzero(left_out >= 0)
    of_places[crossing, left_out[crossing]] = 0
    # A matrix (U, V) of ones, whose product with the probabilities (V, N) sums those that stand for the same token.
    borders, ones = np.append(candidates.starts, len(candidates.ids)), np.ones(len(candidates.ids), np.float32)
    starts, columns, values = (torch.from_numpy(array) for array in (borders, candidates.ids, ones))
    size = len(candidates.tokens), rows.shape[1]
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that PyTorch may change this class
        summing = torch.sparse_csr_tensor(starts, columns, values, size=size, check_invariants=False)
    kept = min(num_kept, len(candidates.tokens))
    chances, indices = (found.numpy() for found in (summing @ of_places.T).T.topk(kept, dim=1))
    padding = (0, 0), (0, num_kept - kept)
    return np.pad(candidates.tokens[indices], padding), np.pad(chances, padding)


def likeliest_of_each(
    rows: Floats, row_numbers: Integers, candidates: Sequence[Candidates], left_out: Integers, num_kept: int
) -> tuple[Integers, Floats]:
    """The tokens and chances of `likeliest`, at places inside a teacher's token, each with candidates of its own.

    The chances are divided by that of all tokens that may stand there, as the bytes before are known.
    """
    num_places = len(row_numbers)
    tokens, chances = np.zeros((num_places, num_kept), np.int64), np.zeros((num_places, num_kept), np.float32)
    if not any(len(each.tokens) for each in candidates):
        return tokens, chances
    place, ids = _flat([each.ids for each in candidates])
    other_place, others = _flat([each.others for each in candidates])
    shares = rows[row_numbers[place], ids]
    totals = np.bincount(place, shares, num_places) + np.bincount(
        other_place, rows[row_numbers[other_place], others], num_places
    )
    shares = np.where(ids == left_out[place], 0, shares / np.maximum(totals, np.finfo(np.float32).tiny)[place])
    begins = np.cumsum([0, *(len(each.ids) for each in candidates[:-1])])
    token_place, starts = _flat([each.starts for each in candidates])
    of_tokens = np.add.reduceat(shares, starts + begins[token_place])
    order = np.lexsort((-of_tokens, token_place))
    rank = np.arange(len(order)) - token_place.searchsorted(token_place)
    kept = rank < num_kept
    where = token_place[kept], rank[kept]
    tokens[where] = np.concatenate([each.tokens for each in candidates])[order[kept]]
    chances[where] = of_tokens[order[kept]]
    return tokens, chances


def _flat(arrays: Sequence[Integers]) -> tuple[Integers, Integers]:
    return np.repeat(np.arange(len(arrays)), list(map(len, arrays))), np.concatenate(arrays)


# A teacher that is a model: it reads each conversation of the training set and predicts all of its tokens.

_BATCH_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}  # 32 MB on a CPU: half and twice as many take longer
_LONGEST_WINDOW = 1024  # tokens that are read at once, whatever the model's context: each has V logits


class Window(NamedTuple):
    """Tokens [start, end - 1), which the model reads, to predict those of [scored, end)."""

    start: int
    scored: int
    end: int


class ModelTeacher:
    """The model in a folder, which predicts the tokens of a split that the student's tokenizer wrote.

    Raises ValueError where the model or its tokenizer cannot be used.
    """

    def __init__(self, path: Path, split: EncodedSplit, student: Vocabulary, device: torch.device) -> None:
        if not path.is_dir():
            raise ValueError(f"{path}: no such model folder: copy one there, such as data/model of another run")
        check_manifest(path)
        self.split, self.student = split, ChatTokenizer(student)
        self.model, content = load_chat_model(path, device)
        self.tokenizer = load_tokenizer(path)
        if self.tokenizer.vocab_size > (known := self.model.config.vocab_size):
            raise ValueError(f"{path}: its tokenizer has {self.tokenizer.vocab_size:,} ids, and the model {known:,}")
        self.device = device
        self.in_bfloat16 = device.type == "cuda" or own_processor().gains_by_bfloat16
        self.context = min(_LONGEST_WINDOW, self.model.config.max_position_embeddings)
        self.controls = self._controls(path, content)
        follow = {  # the student's special tokens that may come next, by the teacher's ids
            self.controls[i]: i for name, i in student.special.items() if i in self.controls and name not in (BOS, PAD)
        }
        self.alignment = Alignment(self.student, self.tokenizer, follow)
        self.lengths = _lengths(self.tokenizer)
        self.nats, self.num_bytes = 0.0, 0  # of the text that it has predicted

    def describe(self) -> dict[str, Any]:
        """The model, and the bits per byte that it needed for the text that it has predicted."""
        num_parameters = sum(weight.numel() for weight in self.model.parameters())
        bits = round(bits_per_byte(self.nats, self.num_bytes) or 0.0, 4)
        return {"fingerprint": self.tokenizer.fingerprint, "parameters": num_parameters, "bits_per_byte": bits}

    def _controls(self, path: Path, content: dict[str, Any]) -> dict[int, int]:
        """The teacher's id for each control token of the student. Raises ValueError where it lacks one that occurs."""
        special = self.tokenizer.special
        own = stand_ins(content, special, self.tokenizer.vocab_size) | special
        controls = {i: own[name] for name, i in self.student.special.items() if name in own}
        occurs = np.bincount(self.split.ids, minlength=self.student.vocab_size) > 0
        if lacking := [name for name, i in self.student.special.items() if occurs[i] and i not in controls]:
            raise ValueError(
                f"{path}: its tokenizer has no {', '.join(lacking)}, which the conversations contain: "
                "expected a model of this pipeline, or another that was trained on ChatML"
            )
        return controls

    def predict(self, conversations: slice, num_kept: int) -> Predictions:
        """The likeliest tokens in the place of each token of some conversations; of the first of each, none."""
        offsets = self.split.offsets[conversations.start : conversations.stop + 1]
        ids = self.split.ids[offsets[0] : offsets[-1]].astype(np.int64)
        offsets = offsets - offsets[0]
        own_ids, own_offsets = (ids, offsets) if self.alignment.is_identity else self._encode(ids, offsets)
        places = find_places(_lengths(self.student)[ids], self.lengths[own_ids])
        numbers, keys = self._what_was_read(ids, own_ids, places)
        tokens, chances = np.zeros((len(ids), num_kept), np.int64), np.zeros((len(ids), num_kept), np.float32)
        left_out = np.where(places.crosses, own_ids[places.indices], -1)
        batches = list(self._batches(own_offsets))
        batch_of, row_of = np.full(len(own_ids), -1), np.zeros(len(own_ids), np.int64)
        for number, batch in enumerate(batches):
            predicted = np.concatenate([np.arange(window.scored, window.end) for window in batch])
            batch_of[predicted], row_of[predicted] = number, np.arange(len(predicted))
        order = np.lexsort((numbers, batch_of[places.indices]))
        borders = batch_of[places.indices][order].searchsorted(np.arange(len(batches) + 1))
        for batch, of_batch in zip(batches, (order[a:b] for a, b in pairwise(borders)), strict=True):
            rows = self._probabilities(own_ids, batch)
            at_begin = numbers[of_batch].searchsorted(len([key for key in keys if not key[0]]))
            for number in np.unique(numbers[of_batch[:at_begin]]):
                some = of_batch[numbers[of_batch] == number]
                candidates = self.alignment.candidates(*keys[number])
                found = likeliest(rows, row_of[places.indices[some]], candidates, left_out[some], num_kept)
                tokens[some], chances[some] = found
            some = of_batch[at_begin:]
            different = [self.alignment.candidates(*keys[number]) for number in numbers[some]]
            found = likeliest_of_each(rows, row_of[places.indices[some]], different, left_out[some], num_kept)
            tokens[some], chances[some] = found
        return Predictions(tokens, chances)

    def _encode(self, ids: Integers, offsets: Integers) -> tuple[Integers, Integers]:
        names = {i: self.tokenizer.token_bytes[own].decode() for i, own in self.controls.items()}
        conversations = []
        for start, end in pairwise(offsets.tolist()):
            segments, begin = [], start
            for place in [*(start + np.flatnonzero(~self.student.is_text[ids[start:end]])).tolist(), end]:
                if begin < place:
                    segments.append(Segment(self.student.decode(ids[begin:place]), LossKind.PROMPT))
                if place < end:
                    segments.append(Segment(names[int(ids[place])], LossKind.PROMPT, control=True))
                begin = place + 1
            conversations.append(segments)
        encoded = self.tokenizer.encode_conversations(conversations)
        return encoded.ids.astype(np.int64), encoded.offsets

    def _what_was_read(
        self, ids: Integers, own_ids: Integers, places: Places
    ) -> tuple[Integers, list[tuple[bytes, bool]]]:
        """(N,) numbers of different arguments of `Alignment.candidates`, and these."""
        inside = np.zeros(len(ids), np.bool)
        if self.alignment.has_word_pieces:
            before = [self.student.token_bytes[i][-1] if self.student.is_text[i] else 0 for i in ids[:-1]]
            inside[1:] = [byte == ord(" ") or _is_letter(byte) for byte in before]  # a word has the space before it
        triples = np.stack([np.where(places.read > 0, own_ids[places.indices], 0), places.read, inside])
        different, inverse = np.unique(triples, axis=1, return_inverse=True)
        arguments = [(self.tokenizer.token_bytes[i][:read], bool(flag)) for i, read, flag in different.T.tolist()]
        keys = sorted(set(arguments))
        number_of = {key: number for number, key in enumerate(keys)}
        return np.array([number_of[key] for key in arguments])[inverse.ravel()], keys

    def _batches(self, offsets: Integers) -> Iterator[list[Window]]:
        windows = [
            Window(*(int(begin) + place for place in window))
            for begin, end in pairwise(offsets)
            for window in sliding_windows(int(end - begin), self.context, default_stride(self.context))
        ]
        sizes = [(window.end - window.start) * self.model.config.vocab_size for window in windows]
        for group in group_by_size(sizes, _BATCH_LOGITS.get(self.device.type, _BATCH_LOGITS["cpu"])):
            yield [windows[i] for i in group]

    @torch.inference_mode()
    def _probabilities(self, ids: Integers, batch: list[Window]) -> Floats:
        """(R, V) float32: the probabilities of all tokens in the place of each that is predicted; counts nats."""
        read = [torch.from_numpy(ids[window.start : window.end - 1]) for window in batch]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            logits = self.model(pad_sequence(read, batch_first=True).to(self.device))
        parts = [
            row[window.scored - window.start - 1 : window.end - window.start - 1]
            for row, window in zip(logits, batch, strict=True)
        ]
        chances: Floats = torch.cat(parts).float().softmax(-1).cpu().numpy()
        targets = np.concatenate([ids[window.scored : window.end] for window in batch])
        is_text = self.tokenizer.is_text[targets]
        own = np.maximum(chances[is_text, targets[is_text]], np.finfo(np.float32).tiny)
        self.nats -= float(np.log(own).sum(dtype=np.float64))
        self.num_bytes += int(self.lengths[targets[is_text]].sum())
        return chances


def _lengths(tokenizer: ChatTokenizer) -> Integers:
    """(V,) the bytes of each token; one for a control token."""
    return np.where(tokenizer.is_text, [len(token) for token in tokenizer.token_bytes], 1)
