"""A teacher that is a model: it reads each conversation of the training set and predicts all of its tokens.

A model with the student's tokenizer predicts its tokens; one with another reads the same bytes, see `alignment`.

Shapes: N tokens of the student, R of the teacher, V the teacher's vocabulary, K tokens of a prediction.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from chatmill.conversation.chatml import BOS, PAD
from chatmill.conversation.template import LossKind, Segment
from chatmill.encoded.token_files import EncodedSplit
from chatmill.evaluation.batch_scoring import group_by_size
from chatmill.evaluation.bits_per_byte import bits_per_byte, default_stride, sliding_windows
from chatmill.model.checkpoint_loading import load_chat_model, stand_ins
from chatmill.pipeline.manifest import check_manifest
from chatmill.teacher.alignment import Alignment, Places, find_places, may_go_on
from chatmill.teacher.likeliest import likeliest, likeliest_of_each
from chatmill.teacher.predictions import Predictions
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.processor import own_processor

_BATCH_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}  # 32 MB on a CPU: half and twice as many take longer
_LONGEST_WINDOW = 1024  # tokens that are read at once, whatever the model's context: each has V logits

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]


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
        follow = {
            self.controls[i]: i for name, i in student.special.items() if i in self.controls and name not in (BOS, PAD)
        }
        self.alignment = Alignment(self.student, self.tokenizer, follow)
        self.lengths = _lengths(self.tokenizer)
        self.nats, self.num_bytes = 0.0, 0  # of the text that it has predicted

    @property
    def bits_per_byte(self) -> float:
        """What it needed for the text that it has predicted."""
        return bits_per_byte(self.nats, self.num_bytes) or 0.0

    def describe(self) -> dict[str, Any]:
        """Its tokenizer and size, and how well it has predicted."""
        num_parameters = sum(weight.numel() for weight in self.model.parameters())
        return {
            "fingerprint": self.tokenizer.fingerprint,
            "parameters": num_parameters,
            "bits_per_byte": round(self.bits_per_byte, 4),
        }

    def _controls(self, path: Path, content: dict[str, Any]) -> dict[int, int]:
        """The teacher's id for each control token of the student. Raises ValueError where it lacks one that occurs."""
        own = stand_ins(content, self.tokenizer.vocab_size) | self.tokenizer.special
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
        """The teacher's tokens of the same conversations, and where each begins and ends."""
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
            inside[1:] = [may_go_on(byte) for byte in before]
        triples = np.stack([np.where(places.read > 0, own_ids[places.indices], 0), places.read, inside])
        different, inverse = np.unique(triples, axis=1, return_inverse=True)
        arguments = [(self.tokenizer.token_bytes[i][:read], bool(flag)) for i, read, flag in different.T.tolist()]
        keys = sorted(set(arguments))
        number_of = {key: number for number, key in enumerate(keys)}
        return np.array([number_of[key] for key in arguments])[inverse.ravel()], keys

    def _batches(self, offsets: Integers) -> Iterator[list[Window]]:
        """The windows of the conversations, in batches of similar length."""
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
        """(R, V) float32 of the tokens that the windows predict, one after another."""
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
