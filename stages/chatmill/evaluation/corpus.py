"""A tokenized test corpus, and its bits per byte under a model.

Shapes: N tokens of D conversations, one after another.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chatmill.conversation.chatml import IM_END, Conversation
from chatmill.conversation.template import LossKind, Segment, TemplateName, conversation_segments, spans
from chatmill.evaluation.bits_per_byte import WindowScorer, bits_per_byte, token_nats
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer


class BitsPerByte(NamedTuple):
    """Bits per byte of all text and of the assistant's; None where there is no such text."""

    all: float | None
    assistant: float | None


@dataclass(frozen=True)
class Corpus:
    """Encoded conversations or texts."""

    tokenizer: ChatTokenizer
    ids: np.ndarray  # (N,)
    offsets: np.ndarray  # (D + 1,)
    is_scored: np.ndarray  # (N,) bool: text that is scored, without control tokens
    is_trained: np.ndarray  # (N,) bool: where the loss mask is set
    num_bytes: np.ndarray  # (N,) 0 for control tokens

    @classmethod
    def from_conversations(
        cls, conversations: Sequence[Conversation], tokenizer: ChatTokenizer, template: TemplateName, threads: int = 1
    ) -> "Corpus":
        """The conversations in a template."""
        return cls.from_segments(
            [conversation_segments(conversation, template) for conversation in conversations], tokenizer, threads
        )

    @classmethod
    def from_segments(
        cls,
        documents: Sequence[list[Segment]],
        tokenizer: ChatTokenizer,
        threads: int = 1,
        *,
        scored: Collection[LossKind] = tuple(LossKind),
    ) -> "Corpus":
        """Documents as segments, of which those with a kind of loss in `scored` are scored.

        The first token of a document is not scored, since it has no context.
        """
        encoded = tokenizer.encode_conversations(documents, threads=threads)
        is_text = tokenizer.is_text[encoded.ids]
        num_bytes = np.array([len(token) for token in tokenizer.token_bytes])[encoded.ids] * is_text
        ends = np.concatenate(([0], np.cumsum(num_bytes)))[encoded.offsets]
        assert np.diff(ends).tolist() == [text_bytes(segments) for segments in documents], (
            "the bytes of the tokens differ from those of the text"
        )
        is_text &= np.isin(encoded.loss, list(scored))
        is_text[encoded.offsets[:-1][np.diff(encoded.offsets) > 0]] = False
        return cls(tokenizer, encoded.ids, encoded.offsets, is_text, encoded.loss == LossKind.TRAINED, num_bytes)

    def documents(self) -> list[np.ndarray]:
        """The ids of each conversation."""
        return self.by_document(self.ids)

    def by_document(self, values: np.ndarray) -> list[np.ndarray]:
        """The values (N,) of the tokens of each conversation."""
        return np.split(values, self.offsets[1:-1])

    def nats(self, context: int, score_windows: WindowScorer) -> np.ndarray:
        """(N,) float64: the nats of each token under a model with this context; 0 for the first of a conversation."""
        return np.concatenate(token_nats(self.documents(), context, score_windows))

    def bits(self, nats: np.ndarray, *, trained_only: bool = False, documents: np.ndarray | None = None) -> BitsPerByte:
        """Bits per byte of all text, None for a model trained on answers alone, and of the assistant's text."""
        return BitsPerByte(
            None if trained_only else self.bits_per_byte(nats, trained_only=False, documents=documents),
            self.bits_per_byte(nats, trained_only=True, documents=documents),
        )

    def text(self) -> bytes:
        """The bytes of all text tokens."""
        return b"".join(self.tokenizer.token_bytes[token] for token in self.ids[self.is_scored])

    def bits_per_byte(
        self, nats: np.ndarray, *, trained_only: bool, documents: np.ndarray | None = None
    ) -> float | None:
        """Pooled over text tokens of all documents, or those where `documents` (D,) is true, given `nats` (N,)."""
        chosen = self.is_scored & self.is_trained if trained_only else self.is_scored
        if documents is not None:
            chosen = chosen & np.repeat(documents, np.diff(self.offsets))
        return bits_per_byte(float(nats[chosen].sum()), int(self.num_bytes[chosen].sum()))

    def stop_nats_per_turn(self, nats: np.ndarray) -> float | None:
        """Mean nats of the token that ends a message of the assistant."""
        ends = nats[self.is_trained & (self.ids == self.tokenizer.special[IM_END])]
        return float(ends.mean()) if len(ends) else None


def text_bytes(segments: Iterable[Segment]) -> int:
    """Bytes of a conversation's text, without control tokens."""
    return sum(len(segment.text.encode()) for segment in segments if not segment.control)


def bytes_per_token(
    conversations: Iterable[Conversation], tokenizer: ChatTokenizer, template: TemplateName
) -> float | None:
    """Mean bytes of a text token, also for tokenizers without control tokens; None where there is no text."""
    texts = [
        "".join(segment.text for segment in span)
        for conversation in conversations
        for span in spans(conversation_segments(conversation, template))
        if not span[0].control
    ]
    tokens = sum(map(len, tokenizer.encode(texts)))
    return sum(len(text.encode()) for text in texts) / tokens if tokens else None
