"""The tokenizer at run time: one class for every type.

Text can never produce a control id, whatever it contains: only the control segments of a conversation do.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from chatmill.conversation import LossKind, Segment, spans
from chatmill.tokenizer.encoding.backends import choose_backend
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary

MAX_RUN = 100_000  # equal characters, or whitespace; tiktoken overflows its stack at about a million
CONTROL_PREFIX = "<|"  # begins every control token's name, and nothing else in escaped text
CHUNK_CHARACTERS = 250_000  # encoded at once


class EncodedConversations(NamedTuple):
    """Conversations in a row: conversation i is [offsets[i], offsets[i + 1])."""

    ids: NDArray[np.unsignedinteger[Any]]  # uint16, or uint32 where the vocabulary needs it
    loss: NDArray[np.uint8]  # uint8, of template.LossKind
    offsets: NDArray[np.int64]


def join(parts: Sequence[EncodedConversations], dtype: np.dtype[np.unsignedinteger[Any]]) -> EncodedConversations:
    """All conversations of several parts in a row; `dtype` is that of ids."""
    starts = np.cumsum([0, *(len(part.ids) for part in parts)])
    return EncodedConversations(
        np.concatenate([np.empty(0, dtype), *(part.ids for part in parts)]),
        np.concatenate([np.empty(0, np.uint8), *(part.loss for part in parts)]),
        np.concatenate([[0], *(part.offsets[1:] + start for part, start in zip(parts, starts, strict=False))]),
    )


class ChatTokenizer:
    """Turns text and conversations into ids and back. Raises ValueError for a vocabulary that is not lossless.

    `leading_space` says that the original tokenizer puts a space before each text. `encode` does not: the chat template
    adds it.
    """

    def __init__(self, vocabulary: Vocabulary, *, leading_space: bool = False) -> None:
        if not vocabulary.lossless:
            raise ValueError("the tokenizer changes or loses text: use one that preserves every character")
        self.vocabulary, self.leading_space = vocabulary, leading_space
        self.vocab_size, self.num_text = len(vocabulary.tokens), vocabulary.num_text
        self.special = vocabulary.special  # name to id of each control token
        self.token_bytes = list(vocabulary.tokens)  # the exact bytes of each id; of control and unused ids, their names
        self.is_text = np.array([kind in TEXT_KINDS for kind in vocabulary.kinds])  # (V,) whether text can produce it
        self.dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._lengths = np.array(list(map(len, vocabulary.tokens)), np.int64)
        self._backend = choose_backend(vocabulary)

    @cached_property
    def is_written(self) -> NDArray[np.bool]:
        """(V,) bool: whether a model writes each id as text: also tokens such as <think>, which are not special."""
        flags = self.vocabulary.flags
        written = self.is_text.copy()
        written[[i for name, i in self.special.items() if not flags.get(name, {}).get("special", True)]] = True
        return written

    @property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers, whatever file they were read from."""
        return self.vocabulary.fingerprint

    @overload
    def encode(self, text: str) -> list[int]: ...
    @overload
    def encode(self, text: list[str]) -> list[list[int]]: ...
    def encode(self, text: str | list[str]) -> list[int] | list[list[int]]:
        """The ids of a text, or of each text of a list.

        Raises ValueError for lone surrogates, which have no bytes, and for runs of over 100,000 equal characters.
        """
        texts = [text] if isinstance(text, str) else text
        for each in texts:
            check_text(each)
        encoded: list[list[int]] = [ids.tolist() for ids in self._backend.encode(texts)]
        return encoded[0] if isinstance(text, str) else encoded

    def encode_segments(self, parts: Iterable[Segment]) -> tuple[list[int], list[LossKind]]:
        """The ids of joined segments, and the loss kind of each; a token has that of its first byte."""
        encoded = self.encode_conversations([list(parts)])
        return encoded.ids.tolist(), list(map(LossKind, encoded.loss))

    def encode_conversations(self, conversations: Sequence[list[Segment]]) -> EncodedConversations:
        """The ids of each conversation's segments, and the loss of each token, which is that of its first byte."""
        return join(list(map(self._encode_chunk, _chunks(conversations))), self.dtype)

    def _encode_chunk(self, conversations: list[list[Segment]]) -> EncodedConversations:
        """Segments and tokens cover the same bytes, so byte offsets give the tokens that begin in each segment."""
        parts = list(chain.from_iterable(conversations))
        texts = [segment.text for segment in parts]
        ids = self._encode_parts(parts, "".join(texts)).astype(self.dtype, copy=False)
        ends = np.cumsum(list(map(self._num_said, texts)), dtype=np.int64)
        stops = self._lengths.take(ids).cumsum()
        assert stops[-1:].sum() == ends[-1:].sum(), "tokens do not cover the text"
        losses = np.frombuffer(bytes([segment.loss for segment in parts]), np.uint8)
        num_started = stops.searchsorted(ends) + (ends > 0)  # tokens that begin before the end of each segment
        loss = np.repeat(losses, np.diff(num_started, prepend=0))
        borders = np.cumsum([0, *map(len, conversations)])
        return EncodedConversations(ids, loss, np.concatenate([[0], num_started])[borders])

    def _encode_parts(self, parts: list[Segment], text: str) -> NDArray[np.integer[Any]]:
        """The ids of segments whose joined text is `text`: in one call if every `<|` in it begins a control token."""
        check_text(text)
        controls = [segment.text for segment in parts if segment.control]
        names = set(controls)
        if missing := sorted(names - self.special.keys()):
            remedy = "add it with train_tokenizer.type: pretrained"
            raise ValueError(f"the tokenizer has no control token {missing[0]}: {remedy}")
        if text.count(CONTROL_PREFIX) == len(controls) and all(name.startswith(CONTROL_PREFIX) for name in names):
            return self._backend.encode_with_special(text, {name: self.special[name] for name in names})
        grouped = spans(parts)
        texts = ["".join(one.text for one in span) for span in grouped if not span[0].control]
        encoded = iter(self._backend.encode(texts))
        ids = (np.array([self.special[span[0].text]]) if span[0].control else next(encoded) for span in grouped)
        return np.concatenate([*ids])

    def lost(self, text: str) -> str:
        """The characters of a text that its tokens do not say as they are, each once; mostly none."""
        missing = {*self.vocabulary.missing_bytes}
        return "".join(dict.fromkeys(char for char in text if not missing.isdisjoint(char.encode()))) if missing else ""

    def said(self, text: str) -> bytes:
        """The bytes of a text that its tokens say: all, but those that no token of a published vocabulary can say."""
        return text.encode().translate(None, self.vocabulary.missing_bytes)

    def _num_said(self, text: str) -> int:
        has_all = text.isascii() and not self.vocabulary.missing_bytes
        return len(text) if has_all else len(self.said(text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens as their names; invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes.__getitem__, ids)).decode(errors="replace")


def _chunks(conversations: Sequence[list[Segment]]) -> Iterator[list[list[Segment]]]:
    chunk: list[list[Segment]] = []
    size = 0
    for conversation in conversations:
        reaches_back = not (conversation and conversation[0].control)  # as its first token could
        if chunk and (reaches_back or size >= CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
        chunk.append(conversation)
        size += sum(len(segment.text) for segment in conversation)
    if chunk:
        yield chunk


def check_text(text: str) -> None:
    """Raise ValueError for text that is not valid Unicode, and for runs that are too long for tiktoken."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"{text[error.start]!r} at character {error.start}"
            raise ValueError(f"text holds half of a surrogate pair, {place}: it is not valid Unicode") from error
    half = MAX_RUN // 2  # a longer run fills at least one window of this size
    for start in range(0, len(text) - half + 1, half) if len(text) > MAX_RUN else ():
        run = None if text[start].isspace() else text[start]  # what `strip` removes: any whitespace, or that character
        if text[start : start + half].strip(run):
            continue
        before, after = text[max(0, start - MAX_RUN) : start], text[start : start + 2 * MAX_RUN]
        if len(before) - len(before.rstrip(run)) + len(after) - len(after.lstrip(run)) > MAX_RUN:
            what = "whitespace characters" if run is None else f"{run!r}"
            raise ValueError(f"text holds a run of over {MAX_RUN:,} {what} near character {start}: shorten it")
