"""What the soft tokenizer learns from: the bytes of each token of text, and its row in a trained model.

Shapes: V vocabulary, N tokens of text, L places of a token, C channels of a row.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.byte_encoder import spell_tokens

_PRIOR = 3000  # occurrences added to those of each token: with 10, rows held out were explained worse


@dataclass(frozen=True)
class EmbeddingDataset:
    """Tokens of text, control and unused ones apart: spelled, and the rows that a model has for them."""

    ids: Tensor  # (N,) int64
    byte_ids: Tensor  # (N, L) int64
    rows: Tensor  # (N, C) float32
    counts: Tensor  # (N,) float32, how often each occurs in what the model learnt from
    held_out: Tensor  # (N,) bool
    num_truncated: int  # tokens that are longer than what is read of them

    @classmethod
    def from_table(
        cls, vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, *, longest: int, held_out: float, seed: int
    ) -> "EmbeddingDataset":
        """The pairs of a model's table (V, C), whose tokens occur `counts` (V,) times in what it learnt from.

        Raises ValueError for empty tokens, and where the share held out, or what is left, has no token.
        """
        ids = [*vocabulary.text_ids]
        tokens, kinds = [vocabulary.tokens[i] for i in ids], [vocabulary.kinds[i] for i in ids]
        chosen = torch.tensor([is_held_out(*entry, held_out, seed) for entry in zip(tokens, kinds, strict=True)])
        if not 0 < int(chosen.sum()) < len(ids):
            raise ValueError(
                f"of {len(ids)} tokens of text {int(chosen.sum())} are held out: one must be, and one not: change "
                f"held_out = {held_out}, or the seed"
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
        """(N,) float32: how much each row counts in learning. One that was seldom seen is little but noise."""
        weights = (self.counts + _PRIOR).sqrt()
        return weights / weights.mean()


def is_held_out(token: bytes, kind: Kind, share: float, seed: int) -> bool:
    """Whether a token is among those held out: a hash of it decides, so that no other token matters."""
    digest = hashlib.blake2b(token, digest_size=8, key=b"%d %d" % (seed, kind)).digest()
    return int.from_bytes(digest, "big") / 2**64 < share
