"""Where a model that works on chunks begins them: for the eye, and in numbers.

Shapes: T tokens of a text.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from chatmill.model.chat_model import ChatModel


@torch.inference_mode()
def chunk_starts(model: ChatModel, ids: Sequence[int]) -> np.ndarray:
    """(T,) bool: which tokens begin a chunk; of a text longer than the context, as if it began anew there."""
    context = model.config.max_position_embeddings
    parts = [ids[start : start + context] for start in range(0, len(ids), context)]
    found = [model.boundaries(torch.tensor([list(part)]))[0].numpy() for part in parts]
    return np.concatenate([np.empty(0, bool), *found])


def chunk_contents(starts: np.ndarray, contents: Sequence[bytes]) -> list[bytes]:
    """The bytes of each chunk of a text, whose tokens have these contents."""
    places = [*np.flatnonzero(starts).tolist(), len(contents)]
    return [b"".join(contents[begin:end]) for begin, end in pairwise(places)]


def chunk_statistics(starts: Sequence[np.ndarray], contents: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """How long the chunks of several texts are, and how many begin where a word or a gap between words does.

    `spread` is the standard deviation of their lengths as a share of the mean: 0 where chunks come like clockwork.
    `chance` is the share of all tokens that begin there.
    """
    lengths = np.concatenate([np.diff([*np.flatnonzero(one), len(one)]) for one in starts])
    edges = [np.array(word_edges(text), bool) for text in contents]
    begun = np.concatenate([edge[one] for edge, one in zip(edges, starts, strict=True)])
    return {
        "tokens": float(lengths.mean()),
        "spread": float(lengths.std() / lengths.mean()),
        "at_word_edges": float(begun.mean()),
        "chance": float(np.concatenate(edges).mean()),
    }


def word_edges(contents: Sequence[bytes]) -> list[bool]:
    """Which tokens begin where a word, or what stands between words, begins."""
    before = b" "
    edges = []
    for content in contents:
        edges.append(_is_letter(before[-1]) != _is_letter(content[0]))
        before = content
    return edges


def _is_letter(byte: int) -> bool:
    return byte >= 128 or chr(byte).isalnum()
