"""A tokenized test corpus, and its bits per byte under a model.

Shapes: N tokens of D documents, one after another: conversations, or texts without roles.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chatmill.conversation import (
    IM_END,
    LossKind,
    Record,
    Segment,
    TemplateName,
    is_document,
    record_segments,
    spans,
    unescape,
)
from chatmill.evaluation.bits_per_byte import WindowScorer, bits_per_byte, token_nats
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer


class BitsPerByte(NamedTuple):
    """Bits per byte of all text and of the assistant's; None where there is no such text."""

    all: float | None
    assistant: float | None


@dataclass(frozen=True)
class Corpus:
    tokenizer: ChatTokenizer
    ids: np.ndarray  # (N,)
    offsets: np.ndarray  # (D + 1,)
    is_scored: np.ndarray  # (N,) bool: text that is scored, without control tokens
    is_trained: np.ndarray  # (N,) bool: where the loss mask is set
    texts: list[bytes]  # the text of each id, unescaped
    begins_added: np.ndarray  # (N,) bool: whether a token's first byte is not the text's, but of an escape or a space
    has_roles: np.ndarray  # (D,) bool: conversations, and no documents of text alone

    @classmethod
    def from_records(cls, records: Sequence[Record], tokenizer: ChatTokenizer, template: TemplateName) -> "Corpus":
        documents = [record_segments(record, template) for record in records]
        has_roles = [not is_document(record.text) for record in records]
        return cls.from_segments(documents, tokenizer, escaped=True, has_roles=has_roles)

    @classmethod
    def from_segments(
        cls,
        documents: Sequence[list[Segment]],
        tokenizer: ChatTokenizer,
        *,
        escaped: bool,
        scored: Collection[LossKind] = tuple(LossKind),
        has_roles: Sequence[bool] | None = None,
    ) -> "Corpus":
        """Documents as segments, of which those with a kind of loss in `scored` are scored.

        `escaped` says whether their text is (chatmill.conversation.escape). Of other text the space that models of the
        tokenizer expect before it is not counted, as an escape's backslash is not. The first token of a document is not
        scored, since it has no context. `has_roles` is by default true for each.
        """
        encoded = tokenizer.encode_conversations(documents)
        is_text, begins = tokenizer.is_text[encoded.ids], encoded.offsets[:-1][np.diff(encoded.offsets) > 0]
        is_scored = is_text & np.isin(encoded.loss, list(scored))
        is_scored[begins] = False
        texts = [token if said else b"" for token, said in zip(tokenizer.token_bytes, tokenizer.is_text, strict=True)]
        begins_added = np.zeros(len(encoded.ids), bool)
        if escaped:
            before_escape = np.array([text.endswith(b"<") for text in texts])[encoded.ids]
            is_backslash = np.array([text.startswith(b"\\") for text in texts])[encoded.ids]
            begins_added[1:] = is_backslash[1:] & before_escape[:-1]
            texts = [text.replace(b"<\\", b"<") for text in texts]
        elif tokenizer.leading_space:  # which the template puts before each span of text
            begins_added[1:] = ~is_text[:-1]
            begins_added[begins] = True
            begins_added &= is_text
        is_trained = encoded.loss == LossKind.TRAINED
        roles = np.ones(len(documents), bool) if has_roles is None else np.array(has_roles, bool)
        corpus = cls(tokenizer, encoded.ids, encoded.offsets, is_scored, is_trained, texts, begins_added, roles)
        said = [unescape(text) if escaped else text for text in _texts(documents)]
        spaces = len(said) if tokenizer.leading_space and not escaped else 0
        num_bytes = sum(len(text.encode()) for text in said) - spaces
        assert corpus.num_bytes.sum() == num_bytes, "the bytes of the tokens differ from those of the text"
        return corpus

    @cached_property
    def num_bytes(self) -> np.ndarray:
        """(N,) the bytes of text of each token, without escapes; 0 for control tokens."""
        lengths = np.array([len(text) for text in self.texts], np.int64)
        num_bytes: np.ndarray = lengths[self.ids] - self.begins_added
        return num_bytes

    def by_document(self, values: np.ndarray) -> list[np.ndarray]:
        """The values (N,) of the tokens of each conversation."""
        return np.split(values, self.offsets[1:-1])

    def nats(self, context: int, score_windows: WindowScorer, stride: int | None = None) -> np.ndarray:
        """(N,) float64: the nats of each token under a model with this context; 0 for the first of a conversation."""
        return np.concatenate(token_nats(self.by_document(self.ids), context, score_windows, stride))

    def bits(self, nats: np.ndarray, *, trained_only: bool = False, documents: np.ndarray | None = None) -> BitsPerByte:
        """Bits per byte of all text, None for a model trained on answers alone, and of the assistant's text."""
        answered = self.has_roles if documents is None else self.has_roles & documents
        return BitsPerByte(
            None if trained_only else self.bits_per_byte(nats, trained_only=False, documents=documents),
            self.bits_per_byte(nats, trained_only=True, documents=answered),
        )

    def text(self) -> bytes:
        """The bytes of all scored tokens, without escapes."""
        tokens = zip(self.ids[self.is_scored], self.begins_added[self.is_scored].astype(int), strict=True)
        return b"".join(self.texts[token][start:] for token, start in tokens)

    def bits_per_byte(
        self, nats: np.ndarray, *, trained_only: bool, documents: np.ndarray | None = None
    ) -> float | None:
        """Pooled over text tokens of all documents, or those where `documents` (D,) is true, given `nats` (N,)."""
        sums = self.sums(nats, trained_only=trained_only, documents=documents)
        return bits_per_byte(float(sums[0].sum()), int(sums[1].sum()))

    def sums(
        self, nats: np.ndarray, *, trained_only: bool, documents: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(D,) each: nats and bytes of the scored tokens of each document, 0 where `documents` (D,) is false."""
        chosen = self.is_scored & self.is_trained if trained_only else self.is_scored
        if documents is not None:
            chosen = chosen & np.repeat(documents, np.diff(self.offsets))
        size = len(self.offsets) - 1
        owners = np.repeat(np.arange(size), np.diff(self.offsets))[chosen]
        return np.bincount(owners, nats[chosen], size), np.bincount(owners, self.num_bytes[chosen], size)

    def stop_nats_per_turn(self, nats: np.ndarray) -> float | None:
        """Mean nats of the token that ends a trained message, which is the assistant's unless a record says more."""
        in_messages = np.repeat(self.has_roles, np.diff(self.offsets))
        ends = nats[self.is_trained & in_messages & (self.ids == self.tokenizer.special[IM_END])]
        return float(ends.mean()) if len(ends) else None


def _texts(documents: Iterable[Iterable[Segment]]) -> Iterator[str]:
    """The text of each span between control tokens."""
    for segments in documents:
        yield from ("".join(segment.text for segment in span) for span in spans(segments) if not span[0].control)


def bytes_per_token(documents: Sequence[list[Segment]], tokenizer: ChatTokenizer) -> float | None:
    """Mean bytes of text, without escapes, of a text token; None where there is none. No control tokens are needed."""
    texts = list(_texts(documents))
    tokens = sum(map(len, tokenizer.encode(texts)))
    return sum(len(unescape(text).encode()) for text in texts) / tokens if tokens else None
