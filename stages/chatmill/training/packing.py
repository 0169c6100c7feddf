"""Complete conversations, packed into rows of equal length.

Shapes: N conversations, B rows of a batch, T tokens of a row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from chatmill.conversation.chatml import BOS, IM_END, IM_START, PAD
from chatmill.conversation.template import LossKind, TemplateName
from chatmill.encoded.token_files import EncodedSplit

_WINDOW = 8192  # conversations that are packed together; with 512 tokens a row, 0.2 % of dailydialog's rows is padding


@dataclass(frozen=True, slots=True)
class ConversationSpans:
    """The packed tokens of each conversation: [start, start + length), after `<|bos|>` if it was truncated."""

    starts: np.ndarray  # (N,) int64
    lengths: np.ndarray  # (N,) int64
    truncated: np.ndarray  # (N,) bool
    rejected: int  # conversations without a trained token, which the arrays leave out

    @property
    def packed_lengths(self) -> np.ndarray:
        """(N,) tokens that each takes in a row."""
        return np.asarray(self.lengths + self.truncated)


class Batch(NamedTuple):
    """The arrays of some rows, each (B, T). Padding has the conversation id -1 and no target."""

    ids: np.ndarray  # int64
    positions: np.ndarray  # int64, from 0 in each conversation
    conversation_ids: np.ndarray  # int64, which of the row's conversations a token belongs to
    targets: np.ndarray  # int64, the next token of the same conversation
    loss: np.ndarray  # int64, the target's chatmill.conversation.template.LossKind; IGNORED where there is none


def truncate_conversations(
    split: EncodedSplit, context: int, template: TemplateName, special: Mapping[str, int]
) -> ConversationSpans:
    """The conversations with trained tokens; longer ones than `context` tokens lose their beginning."""
    if context < 2:
        raise ValueError(f"context = {context}: expected 2 tokens or more, as one alone predicts none")
    starts, lengths = np.array(split.offsets[:-1]), np.diff(split.offsets)
    if len(starts):
        trained = np.logical_or.reduceat(split.loss == LossKind.TRAINED, starts)
        starts, lengths, rejected = starts[trained], lengths[trained], int((~trained).sum())
    else:
        rejected = 0
    truncated = lengths > context
    for i in np.flatnonzero(truncated):
        span = slice(starts[i], starts[i] + lengths[i])
        begin, end = _end_that_fits(split.ids[span], split.loss[span], context - 1, template, special)
        starts[i], lengths[i] = starts[i] + begin, end - begin
    return ConversationSpans(starts, lengths, truncated, rejected)


def _end_that_fits(
    ids: np.ndarray, loss: np.ndarray, room: int, template: TemplateName, special: Mapping[str, int]
) -> tuple[int, int]:
    """The longest span of at most `room` tokens that begins with a message and ends with the last trained token.

    If the last message alone is longer, the span has its last tokens.
    """
    end = int(np.flatnonzero(loss == LossKind.TRAINED)[-1]) + 1
    if template == "chatml":
        messages = np.flatnonzero(ids == special[IM_START])
    else:
        messages = np.flatnonzero(ids == special[IM_END]) + 1
    fitting = messages[(messages >= end - room) & (messages < end)]
    return (int(fitting[0]) if len(fitting) else max(1, end - room)), end


def best_fit(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Assign items to rows: longest first, each to the fullest row that still has room for it.

    `best_fit([5, 3, 2, 6], 8)` is `[[3, 2], [0, 1]]`.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # rows by the number of tokens that still fit
    rooms = 0  # bit r is set where by_room[r] has rows
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = row_length, len(rows)
            rows.append([])
        rows[row].append(item)
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows


@dataclass(frozen=True, slots=True)
class PackedDataset:
    """The conversations of a split, packed into rows and batches."""

    split: EncodedSplit
    spans: ConversationSpans
    row_length: int
    special: Mapping[str, int]

    def epoch(self, seed: int, number: int) -> Iterator[np.ndarray]:
        """Rows of conversation indices, each conversation once; both arguments determine the order."""
        room = self.spans.packed_lengths
        random = np.random.default_rng((seed, number))
        order = random.permutation(len(room))
        for window in np.array_split(order, -(-len(order) // _WINDOW) or 1):
            rows = best_fit(room[window].tolist(), self.row_length)
            for row in random.permutation(len(rows)):
                yield window[rows[row]]

    def endless_rows(self, seed: int) -> Iterator[np.ndarray]:
        """The rows of epoch after epoch, without end."""
        return chain.from_iterable(self.epoch(seed, number) for number in count())

    def padding_fraction(self, seed: int) -> float:
        """The fraction of the first epoch's tokens that is padding."""
        num_rows = sum(1 for _ in self.epoch(seed, 0))
        return 1 - int(self.spans.packed_lengths.sum()) / (num_rows * self.row_length)

    def batches(
        self, rows: Iterable[np.ndarray], rows_per_batch: int, rank: int = 0, world_size: int = 1
    ) -> list[Batch]:
        """The rows of a rank, in batches of equal shape; all ranks get the same number of batches.

        Rows of padding fill up the last ones.
        """
        rows = list(rows)
        rows += [np.empty(0, np.int64)] * (-len(rows) % (rows_per_batch * world_size))
        rows = rows[rank::world_size]
        return [self.batch(rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]

    def batch(self, rows: Sequence[np.ndarray]) -> Batch:
        """The batch of these rows; one without any conversation is padding."""
        shape = len(rows), self.row_length + 1
        ids, loss = np.full(shape, self.special[PAD]), np.full(shape, int(LossKind.IGNORED))
        positions, conversations = np.zeros(shape, np.int64), np.full(shape, -1)
        for row, members in enumerate(rows):
            end = 0
            for number, i in enumerate(members):
                start, length, truncated = self.spans.starts[i], self.spans.lengths[i], self.spans.truncated[i]
                begin, end = end, end + length + truncated
                ids[row, begin] = self.special[BOS]
                ids[row, end - length : end] = self.split.ids[start : start + length]
                loss[row, end - length : end] = self.split.loss[start : start + length]
                positions[row, begin:end] = np.arange(end - begin)
                conversations[row, begin:end] = number
        loss[positions == 0] = LossKind.IGNORED  # no token predicts the first one of a conversation
        return Batch(ids[:, :-1], positions[:, :-1], conversations[:, :-1], ids[:, 1:], loss[:, 1:])
