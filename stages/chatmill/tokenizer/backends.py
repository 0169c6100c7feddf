"""The libraries that do the work: tiktoken wherever it can express the type, otherwise tokenizers or sentencepiece."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain

import numpy as np
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from chatmill.template import Segment, spans
from chatmill.tokenizer.ranks import encoding, refusal
from chatmill.tokenizer.sentencepiece_model import to_model
from chatmill.tokenizer.tokenizer_json import SPACE, to_json
from chatmill.tokenizer.vocabulary import Kind, Vocabulary

OPENING = "<|"  # of every control token's name, and of nothing else in escaped text


class Backend(ABC):
    """Encodes text; text never gives a control id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.special = vocabulary.special

    @abstractmethod
    def encode_batch(self, texts: list[str], threads: int) -> list[list[int]]:
        """The ids of each text."""

    def encode_segments(self, parts: Sequence[Segment], text: str) -> np.ndarray:
        """(N,) int64, the ids of segments, each span encoded by itself; `text` is all of theirs, joined."""
        groups = spans(parts)
        texts = ["".join(segment.text for segment in span) for span in groups if not span[0].control]
        encoded = iter(self.encode_batch(texts, threads=1))
        ids = [[self.special[span[0].text]] if span[0].control else next(encoded) for span in groups]
        return np.fromiter(chain.from_iterable(ids), np.int64)


def backend(vocabulary: Vocabulary) -> Backend:
    """The fastest that gives exactly the vocabulary's ids."""
    if Kind.FALLBACK in vocabulary.kinds:
        return _SentencePiece(vocabulary)
    return _Tokenizers(vocabulary) if refusal(vocabulary) else _Tiktoken(vocabulary)


class _Tiktoken(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._encoding = encoding(vocabulary)

    def encode_batch(self, texts: list[str], threads: int) -> list[list[int]]:
        if threads == 1:
            return list(map(self._encoding.encode_ordinary, texts))
        return self._encoding.encode_ordinary_batch(texts, num_threads=threads)

    def encode_segments(self, parts: Sequence[Segment], text: str) -> np.ndarray:
        """In one call, if it is certain that every name of a control token in the text stands for one."""
        controls = [segment.text for segment in parts if segment.control]
        if text.count(OPENING) != len(controls) or not all(name.startswith(OPENING) for name in set(controls)):
            return super().encode_segments(parts, text)
        ids = self._encoding.encode_to_numpy(text, allowed_special=set(controls), disallowed_special=())
        return ids.astype(np.int64)


class _Tokenizers(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._tokenizer = Tokenizer.from_str(to_json(vocabulary, special=False))

    def encode_batch(self, texts: list[str], threads: int) -> list[list[int]]:
        return [encoded.ids for encoded in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


class _SentencePiece(Backend):
    """U+2581, which SentencePiece takes for a space, is encoded as its three bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._processor = SentencePieceProcessor(model_proto=to_model(vocabulary))
        fallback = {token[0]: i for i, token in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == Kind.FALLBACK}
        self._space = [fallback[byte] for byte in SPACE.encode()]

    def encode_batch(self, texts: list[str], threads: int) -> list[list[int]]:
        plain = [part for text in texts for part in text.split(SPACE)]
        encoded = iter(self._processor.encode(plain, num_threads=threads))
        result = []
        for text in texts:
            ids = next(encoded)
            for _ in range(text.count(SPACE)):
                ids += self._space + next(encoded)
            result.append(ids)
        return result
