"""The chunks in which a chunking model processes text, and their statistics.

Shapes: T tokens of a text.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from chatmill.evaluation.intervals import pooled_share
from chatmill.model.chat_model import ChatModel


@torch.inference_mode()
def chunk_starts(model: ChatModel, ids: Sequence[int]) -> np.ndarray:
    """(T,) bool: whether each token starts a chunk; a longer text is processed in parts of one context."""
    context = model.config.max_position_embeddings
    parts = [ids[start : start + context] for start in range(0, len(ids), context)]
    found = [model.boundaries(torch.tensor([list(part)]))[0].numpy() for part in parts]
    return np.concatenate([np.empty(0, bool), *found])


def chunk_contents(starts: np.ndarray, contents: Sequence[bytes]) -> list[bytes]:
    """The bytes of each chunk of a text, given the bytes of its tokens."""
    places = [*np.flatnonzero(starts).tolist(), len(contents)]
    return [b"".join(contents[begin:end]) for begin, end in pairwise(places)]


def chunk_statistics(starts: Sequence[np.ndarray], contents: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """The mean length of the chunks of several texts in tokens, and the share that starts at an edge of a word.

    `spread` is the standard deviation of the lengths divided by their mean, 0 for chunks of equal length. `chance` is
    the share of all tokens that start at an edge of a word.
    """
    lengths = np.concatenate([np.diff([*np.flatnonzero(one), len(one)]) for one in starts])
    edges = [np.array(word_edges(text), bool) for text in contents]
    return {
        "tokens": float(lengths.mean()),
        "spread": float(lengths.std() / lengths.mean()),
        "at_word_edges": pooled_share([edge[one] for edge, one in zip(edges, starts, strict=True)]),
        "chance": pooled_share(edges),
    }


def word_edges(contents: Sequence[bytes]) -> list[bool]:
    """Whether each token starts where a word starts or ends."""
    before = b" "
    edges = []
    for content in contents:
        edges.append(_is_letter(before[-1]) != _is_letter(content[0]))
        before = content
    return edges


def _is_letter(byte: int) -> bool:
    return byte >= 128 or chr(byte).isalnum()
