"""The data of a run: conversations, by themselves or in chains, packed into rows of equal length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatmill.conversation import BOS, IM_END, IM_START, PAD, LossKind, TemplateName
from chatmill.encoded.token_files import EncodedSplit, Meta, Sources, read_inputs, read_sources, read_split
from chatmill.teacher.predictions import Predictions, read_predictions
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.chains import KEY, Row, best_fit, draw_epoch, find_heads, make_chains, source_factors
from chatmill.training.train_parameters import TrainParameters, Weight

_BLOCK = 1 << 24  # tokens that are looked through at once
_WINDOW = 8192  # conversations that are packed together; with 512 tokens a row, 0.2 % of dailydialog's rows is padding


class ConversationSpans(NamedTuple):
    """The packed tokens of each of N conversations or parts of a document: [start, start + length).

    They follow `<|bos|>` where it is not among them: in a truncated conversation, and in a later part of a document.
    """

    rejected: int  # conversations without a trained token, which the arrays leave out
    starts: np.ndarray  # (N,) int64
    lengths: np.ndarray  # (N,) int64
    truncated: np.ndarray  # (N,) bool, whether `<|bos|>` is added
    documents: np.ndarray  # (N,) bool
    heads: np.ndarray  # (N,) int64, tokens of `<|bos|>` and of the system message, if any
    kinds: np.ndarray  # (N,) int64, equal for heads of equal tokens

    @property
    def packed_lengths(self) -> np.ndarray:
        """(N,) tokens that each takes in a row."""
        return np.asarray(self.lengths + self.truncated)

    @property
    def num_cut(self) -> int:
        """Conversations of which only the end remains, as they are longer than the context."""
        return int((self.truncated & ~self.documents).sum())

    def not_longer(self, length: int) -> "ConversationSpans":
        """Those of at most `length` tokens that are not truncated."""
        return self.select((self.lengths <= length) & ~self.truncated)

    def select(self, kept: np.ndarray) -> "ConversationSpans":
        """The spans where `kept` (N,) is true."""
        return ConversationSpans(self.rejected, *(array[kept] for array in self[1:]))


class Batch(NamedTuple):
    """The arrays of some rows, each (B, T). Padding has the conversation id -1 and no target."""

    ids: np.ndarray  # int64
    positions: np.ndarray  # int64, from 0 in each conversation or chain
    conversation_ids: np.ndarray  # int64, which of the row's conversations or chains a token belongs to
    targets: np.ndarray  # int64, the next token of the same conversation or chain
    loss: np.ndarray  # int64, the target's chatmill.conversation.LossKind; IGNORED where there is none
    sources: np.ndarray  # int64, the number of the source that the target is of; -1 where there is none
    teacher: Predictions | None = None  # (B, T, K) in the place of each target, int64 and float32


def truncate_conversations(
    split: EncodedSplit, context: int, template: TemplateName, special: Mapping[str, int]
) -> ConversationSpans:
    """The spans to pack, of at most `context` tokens each; conversations without a trained token are left out.

    A longer conversation is cut to its end; a longer document is divided into parts, each packed by itself.
    """
    if context < 2:
        raise ValueError(f"context = {context}: expected 2 tokens or more, as one alone predicts none")
    numbers: dict[bytes, int] = {}  # of different heads, across blocks
    # In blocks of about _BLOCK tokens, so that the split need not be in memory at once.
    borders = np.searchsorted(split.offsets, range(_BLOCK, len(split.ids), _BLOCK)).tolist()
    blocks = []
    for start, end in pairwise([0, *dict.fromkeys([*borders, len(split.offsets) - 1])]):
        first, last = split.offsets[start], split.offsets[end]
        block = EncodedSplit(split.ids[first:last], split.loss[first:last], split.offsets[start : end + 1] - first)
        starts, *others = _truncate(block, context, template, special, numbers)
        blocks.append((starts + first, *others))
    *arrays, rejected = map(np.concatenate, zip(*blocks, strict=True))
    return ConversationSpans(int(rejected.sum()), *arrays)


def _truncate(
    split: EncodedSplit, context: int, template: TemplateName, special: Mapping[str, int], numbers: dict[bytes, int]
) -> tuple[np.ndarray, ...]:
    """The arrays of ConversationSpans, and which conversations are rejected."""
    starts, lengths, documents = split.offsets[:-1], np.diff(split.offsets), split.is_document
    trained = np.logical_or.reduceat(split.loss == LossKind.TRAINED, starts) if len(starts) else documents
    arrays = (starts[trained], lengths[trained], documents[trained])
    starts, lengths, documents, later = _divide_documents(*arrays, context)
    truncated = ~documents & (lengths > context)
    heads = find_heads(split, starts, lengths, template, special)
    texts = (split.ids[start : start + head].tobytes() for start, head in zip(starts, heads, strict=True))
    kinds = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    for i in np.flatnonzero(truncated):
        span = slice(starts[i], starts[i] + lengths[i])
        begin, end = _last_span_that_fits(split.ids[span], split.loss[span], context - 1, template, special)
        starts[i], lengths[i] = starts[i] + begin, end - begin
    return starts, lengths, truncated | later, documents, heads, kinds, ~trained


def _divide_documents(
    starts: np.ndarray, lengths: np.ndarray, documents: np.ndarray, context: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The spans, with long documents in parts; whether each is of a document, and whether it is a later part of one.

    The first part has `<|bos|>`; a later one leaves room for it.
    """
    room = context - 1
    counts = np.where(documents, np.maximum(1, -(-(lengths - 1) // room)), 1)
    starts, lengths, documents = (np.repeat(array, counts) for array in (starts, lengths, documents))
    numbers = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)  # of the parts of each document
    later = numbers > 0
    skipped = numbers * room + later
    ends = np.where(documents, np.minimum(lengths, (numbers + 1) * room + 1), lengths)
    return starts + skipped, ends - skipped, documents, later


def _last_span_that_fits(
    ids: np.ndarray, loss: np.ndarray, room: int, template: TemplateName, special: Mapping[str, int]
) -> tuple[int, int]:
    """The longest span of at most `room` tokens that begins with a message and ends with the last trained token.

    With markers it begins after an answer. If no message fits, the span is the last `room` tokens.
    """
    end = int(np.flatnonzero(loss == LossKind.TRAINED)[-1]) + 1
    if template == "chatml":
        messages = np.flatnonzero(ids == special[IM_START])
    else:
        messages = np.flatnonzero(ids == special[IM_END]) + 1
    fitting = messages[(messages >= end - room) & (messages < end)]
    return (int(fitting[0]) if len(fitting) else max(1, end - room)), end  # without <|bos|>, which is added again


@dataclass(frozen=True, slots=True)
class PackedDataset:
    """The conversations of a split, packed into rows and batches; the fraction `chained` of them in chains.

    `weights` says how often those of each of the `sources` are read in an epoch. `teacher` has predictions for the
    tokens of the split.
    """

    split: EncodedSplit
    spans: ConversationSpans
    row_length: int
    special: Mapping[str, int]
    chained: float = 0.0
    sources: Sources | None = None
    weights: Mapping[str, Weight] = field(default_factory=dict)
    teacher: Predictions | None = None

    def epoch(self, seed: int, number: int) -> Iterator[Row]:
        """Rows, with each conversation in one of them or as often as the weights say; the arguments set the order."""
        random = np.random.default_rng((seed, number, 0))
        if self.weights:
            order = draw_epoch(self._span_sources(), self.source_factors(), random)
        else:
            order = random.permutation(len(self.spans.starts))
        for window in np.array_split(order, -(-len(order) // _WINDOW) or 1):
            documents = list(self._documents(window, random))
            rows = best_fit([self._length(document) for document in documents], self.row_length)
            for row in random.permutation(len(rows)):
                yield Row(*map(np.concatenate, zip(*(documents[i] for i in rows[row]), strict=True)))

    def _documents(self, window: np.ndarray, random: np.random.Generator) -> Iterator[Row]:
        lengths = self.spans.packed_lengths
        is_first = np.zeros(len(window), bool)  # a chain with two copies of a conversation would teach to copy
        is_first[np.unique(window, return_index=True)[1]] = True
        is_alone = (self.spans.truncated | self.spans.documents)[window]
        is_chained = (random.random(len(window)) < self.chained) & is_first & ~is_alone
        heads, kinds = self.spans.heads, self.spans.kinds
        yield from make_chains(window[is_chained], lengths, heads, kinds, self.row_length, random)
        yield from (Row(np.array([i]), np.zeros(1, np.int64)) for i in window[~is_chained])

    def of_source(self, source: int) -> "PackedDataset":
        """The conversations of one source, by its index, each as often as any other."""
        return replace(self, spans=self.spans.select(self._span_sources() == source), weights={})

    def span_factors(self) -> np.ndarray:
        """(N,) how often each conversation is read in an epoch, on average."""
        return self.source_factors()[self._span_sources()] if self.weights else np.ones(len(self.spans.starts))

    def source_factors(self) -> np.ndarray:
        """(S,) how often a conversation of each source is read in an epoch, on average."""
        factors = source_factors(self.weights, self.source_names, self.source_tokens())
        if factors[self._span_sources()].sum() < 1:
            raise ValueError(f"{KEY}: less than one conversation is left for an epoch: expected larger weights")
        return factors

    def source_shares(self) -> np.ndarray:
        """(S,) the share of each source in the tokens of an epoch."""
        tokens = self.source_factors() * self.source_tokens()
        return np.asarray(tokens / tokens.sum())

    def source_tokens(self) -> np.ndarray:
        """(S,) the tokens of each source's conversations."""
        lengths = self.spans.packed_lengths
        return np.bincount(self._span_sources(), lengths, len(self.source_names)).astype(np.int64)

    @property
    def source_names(self) -> Sequence[str]:
        """(S,) the names of the sources; one name where they are unknown."""
        return self.sources.names if self.sources else ["all"]

    def _span_sources(self) -> np.ndarray:
        """(N,) the source of each conversation."""
        return self.sources_of(self.spans.starts)

    def sources_of(self, starts: np.ndarray) -> np.ndarray:
        """(K,) the numbers of the sources of the conversations in which these tokens (K,) of the split lie."""
        if self.sources is None:
            return np.zeros(len(starts), np.uint16)
        return self.sources.of_conversations[np.searchsorted(self.split.offsets, starts, side="right") - 1]

    def _length(self, row: Row) -> int:
        return int(self.spans.packed_lengths[row.conversations].sum() - row.skipped.sum())

    def endless_rows(self, seed: int) -> Iterator[Row]:
        return chain.from_iterable(self.epoch(seed, number) for number in count())

    def measure_epoch(self, seed: int) -> tuple[int, float]:
        """The tokens of the first epoch's rows, and the fraction of them that is padding."""
        lengths = [self._length(row) for row in self.epoch(seed, 0)]
        tokens = len(lengths) * self.row_length
        return tokens, 1 - sum(lengths) / tokens

    def batches(self, rows: Iterable[Row], rows_per_batch: int, rank: int = 0, world_size: int = 1) -> list[Batch]:
        """The rows of a rank, in batches of equal shape; all ranks get the same number of batches.

        Rows of padding fill up the last ones.
        """
        rows = list(rows)
        rows += [Row(np.empty(0, np.int64), np.empty(0, np.int64))] * (-len(rows) % (rows_per_batch * world_size))
        rows = rows[rank::world_size]
        return [self.batch(rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]

    def batch(self, rows: Sequence[Row]) -> Batch:
        """The batch of these rows; one without any conversation is padding."""
        shape = len(rows), self.row_length + 1
        ids, loss = np.full(shape, self.special[PAD]), np.full(shape, int(LossKind.IGNORED))
        positions, conversations, sources = np.zeros(shape, np.int64), np.full(shape, -1), np.full(shape, -1)
        taught = None
        if self.teacher is not None:
            kept = self.teacher.tokens.shape[1]
            taught = Predictions(np.zeros((*shape, kept), np.int64), np.zeros((*shape, kept), np.float32))
        for row, members in enumerate(rows):
            begin = end = 0
            of_members = self.sources_of(self.spans.starts[members.conversations])
            for number, (i, skipped) in enumerate(zip(*members, strict=True)):
                start, length = self.spans.starts[i] + skipped, self.spans.lengths[i] - skipped
                begin, end = (begin if skipped else end), end + length + self.spans.truncated[i]
                ids[row, begin] = self.special[BOS]
                ids[row, end - length : end] = self.split.ids[start : start + length]
                loss[row, end - length : end] = self.split.loss[start : start + length]
                positions[row, begin:end] = np.arange(end - begin)
                conversations[row, begin:end] = conversations[row, begin] if skipped else number
                sources[row, end - length : end] = of_members[number]
                for array, predicted in zip(taught or (), self.teacher or (), strict=True):
                    array[row, end - length : end] = predicted[start : start + length]
        loss[positions == 0] = LossKind.IGNORED  # no token predicts the first one of a conversation
        if taught is not None:
            taught = Predictions(taught.tokens[:, 1:], taught.chances[:, 1:])
        arrays = ids[:, :-1], positions[:, :-1], conversations[:, :-1], ids[:, 1:], loss[:, 1:]
        return Batch(*arrays, sources[:, 1:], taught)


# The data of a run: the encoded conversations in rows of the context's length, and what a teacher predicts of them.

CHAINED = 0.5  # of the conversations; without chains, answers after 300 tokens of other talk were 40 % right, not 98 %


class TrainingData(NamedTuple):
    """What a run reads."""

    meta: Meta
    vocabulary: Vocabulary
    train: PackedDataset
    validation: PackedDataset
    taught_by: dict[str, Any]  # what the model's metadata tell of its teacher


def read_data(tokens: Path, tokenizer: Path, teacher: Path, parameters: TrainParameters) -> TrainingData:
    """Raises ValueError where there is nothing to train on, or the files do not fit together."""
    meta, vocabulary = read_inputs(tokens, tokenizer)
    predictions, formats = read_predictions(teacher, meta)
    if predictions is None or not parameters.teacher_weight:
        predictions, taught_by = None, {}
    else:
        taught_by = {"teacher": formats, "teacher_weight": parameters.teacher_weight}

    def pack(name: str) -> PackedDataset:
        split, sources = read_split(tokens, name), read_sources(tokens, name, meta)
        spans = truncate_conversations(split, parameters.context, meta.template, vocabulary.special)
        return PackedDataset(split, spans, parameters.context, vocabulary.special, sources=sources)

    train = replace(pack("train"), chained=CHAINED, teacher=predictions)
    if not len(train.spans.starts):
        raise ValueError(f"{tokens}: none of {meta.conversations['train']} conversations has anything to train on")
    return TrainingData(meta, vocabulary, train, pack("validation"), taught_by)
