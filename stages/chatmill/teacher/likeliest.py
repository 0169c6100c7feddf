"""The likeliest tokens of a student at some places, by a teacher's probabilities there.

Shapes: N places, R rows of probabilities, V the teacher's vocabulary, U tokens that some of it stand for, K tokens of a
prediction.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatmill.teacher.alignment import Candidates

Integers = NDArray[np.integer]
Floats = NDArray[np.floating]


def likeliest(
    rows: Floats, places: Integers, candidates: Candidates, left_out: Integers, num_kept: int
) -> tuple[Integers, Floats]:
    """(N, K) the likeliest tokens at places with the same candidates, given their rows of (R, V); and their chances.

    `left_out` (N,) is a candidate that stands for no token there, or -1.
    """
    of_places = torch.from_numpy(rows)[places]
    crossing = np.flatnonzero(left_out >= 0)
    of_places[crossing, left_out[crossing]] = 0
    kept = min(num_kept, len(candidates.tokens))
    values, indices = (found.numpy() for found in (_sums(candidates, rows.shape[1]) @ of_places.T).T.topk(kept, dim=1))
    padding = (0, 0), (0, num_kept - kept)
    return np.pad(candidates.tokens[indices], padding), np.pad(values, padding)


def likeliest_of_each(
    rows: Floats, places: Integers, candidates: Sequence[Candidates], left_out: Integers, num_kept: int
) -> tuple[Integers, Floats]:
    """The same for places with few candidates of their own; a chance is a share of all that may stand there."""
    number = len(places)
    tokens, chances = np.zeros((number, num_kept), np.int64), np.zeros((number, num_kept), np.float32)
    if not any(len(each.tokens) for each in candidates):
        return tokens, chances
    place, ids = _flat([each.ids for each in candidates])
    other_place, others = _flat([each.others for each in candidates])
    shares = rows[places[place], ids]
    totals = np.bincount(place, shares, number) + np.bincount(other_place, rows[places[other_place], others], number)
    shares = np.where(ids == left_out[place], 0, shares / np.maximum(totals, np.finfo(np.float32).tiny)[place])
    begins = np.cumsum([0, *(len(each.ids) for each in candidates[:-1])])
    token_place, starts = _flat([each.starts for each in candidates])
    of_tokens = np.add.reduceat(shares, starts + begins[token_place])
    order = np.lexsort((-of_tokens, token_place))
    rank = np.arange(len(order)) - token_place.searchsorted(token_place)
    kept = rank < num_kept
    where = token_place[kept], rank[kept]
    tokens[where] = np.concatenate([each.tokens for each in candidates])[order[kept]]
    chances[where] = of_tokens[order[kept]]
    return tokens, chances


def _sums(candidates: Candidates, vocab_size: int) -> Tensor:
    """(U, V) sparse: what adds up the probabilities of the ids that stand for the same token."""
    borders, ones = np.append(candidates.starts, len(candidates.ids)), np.ones(len(candidates.ids), np.float32)
    rows, columns, values = (torch.from_numpy(array) for array in (borders, candidates.ids, ones))
    size = len(candidates.tokens), vocab_size
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that PyTorch may change this class
        return torch.sparse_csr_tensor(rows, columns, values, size=size, check_invariants=False)


def _flat(arrays: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Which array each value is of, and the values one after another."""
    return np.repeat(np.arange(len(arrays)), list(map(len, arrays))), np.concatenate(arrays)
