"""The training data of the soft tokenizer: the bytes of each text token, and its row in a trained model.

Shapes: V vocabulary, N text tokens, L positions in a token, C channels of a row.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.byte_encoder import spell_tokens

_PRIOR = 3000  # added to the count of each token; with 10, held-out rows were predicted worse


@dataclass(frozen=True)
class EmbeddingDataset:
    """The text tokens, without control and unused ones: their bytes, and their rows in a model."""

    ids: Tensor  # (N,) int64
    byte_ids: Tensor  # (N, L) int64
    rows: Tensor  # (N, C) float32
    counts: Tensor  # (N,) float32, how often each occurs in the model's training data
    held_out: Tensor  # (N,) bool
    num_truncated: int  # tokens of which only the beginning is read

    @classmethod
    def from_table(
        cls, vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, *, longest: int, held_out: float, seed: int
    ) -> "EmbeddingDataset":
        """The dataset of a model's table (V, C), whose tokens occur `counts` (V,) times in its training data.

        Raises ValueError for empty tokens, and if no token or every token is held out.
        """
        ids = [*vocabulary.text_ids]
        tokens, kinds = [vocabulary.tokens[i] for i in ids], [vocabulary.kinds[i] for i in ids]
        chosen = torch.tensor([is_held_out(*entry, held_out, seed) for entry in zip(tokens, kinds, strict=True)])
        if not 0 < int(chosen.sum()) < len(ids):
            raise ValueError(
                f"held_out = {held_out}: {int(chosen.sum())} of {len(ids)} text tokens are held out: expected at least "
                f"one, and not all: change held_out or the seed"
            )
        return cls(
            ids=torch.tensor(ids),
            byte_ids=spell_tokens(tokens, kinds, longest),
            rows=table[ids],
            counts=torch.from_numpy(counts[ids]).float(),
            held_out=chosen,
            num_truncated=sum(len(token) > longest for token in tokens),
        )

    @property
    def weights(self) -> Tensor:
        """(N,) float32: the weight of each row in training. Rows of rare tokens are mostly noise."""
        weights = (self.counts + _PRIOR).sqrt()
        return weights / weights.mean()


def is_held_out(token: bytes, kind: Kind, share: float, seed: int) -> bool:
    """Whether a token is held out: its hash decides, independent of all other tokens."""
    digest = hashlib.blake2b(token, digest_size=8, key=b"%d %d" % (seed, kind)).digest()
    return int.from_bytes(digest, "big") / 2**64 < share
