"""The libraries that do the work: tiktoken wherever it can express the type, otherwise tokenizers or sentencepiece."""

import re
from abc import ABC, abstractmethod

import numpy as np
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from chatmill.tokenizer.ranks import encoding, refusal
from chatmill.tokenizer.sentencepiece_model import to_model
from chatmill.tokenizer.tokenizer_json import SPACE, to_json
from chatmill.tokenizer.vocabulary import Kind, Vocabulary


class Backend(ABC):
    """Encodes text; text never gives a control id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._controls = {name: np.array([i]) for name, i in vocabulary.special.items()}

    @abstractmethod
    def encode_batch(self, texts: list[str], threads: int) -> list[list[int]]:
        """The ids of each text."""

    def encode_marked(self, text: str, names: set[str]) -> np.ndarray:
        """The ids of a text in which each of these names stands for its control token; what is between, by itself."""
        stretches = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        texts = list(dict.fromkeys(stretches[::2]))  # the newline after each message is there once
        arrays = dict(zip(texts, self._encode_arrays(texts), strict=True)) | self._controls
        return np.concatenate([arrays[stretch] for stretch in stretches])

    def _encode_arrays(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int64) for ids in self.encode_batch(texts, threads=1)]


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

    def encode_marked(self, text: str, names: set[str]) -> np.ndarray:
        return self._encoding.encode_to_numpy(text, allowed_special=names, disallowed_special=())


class _Tokenizers(Backend):
    """Works in as many threads as there are cores; the variable TOKENIZERS_PARALLELISM=false keeps it to one."""

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

    def _encode_arrays(self, texts: list[str]) -> list[np.ndarray]:
        if any(SPACE in text for text in texts):
            return super()._encode_arrays(texts)
        return self._processor.encode(texts, num_threads=1, return_type="numpy")
