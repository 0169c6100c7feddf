"""Both trainers of BPE against its definition: a slow implementation that counts all pairs before each merge."""

from collections import Counter
from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.patterns import PATTERNS

KNOWN = st.characters(exclude_categories=["Cs", "Cn"])  # engines disagree whether an unassigned character is a letter
TEXTS = st.lists(st.text(KNOWN) | st.text("aab '1é中🙂\n", max_size=60), max_size=8)

each_trainer = pytest.mark.parametrize("trainer", ["rustbpe", "tokenizers"])


def merges(texts, num_merges, **chosen):
    """The pairs of tokens that `bpe.train` merges, in their order."""
    vocabulary = bpe.train(texts, 256 + num_merges, bpe.Settings(**chosen))
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for left, right in vocabulary.merges]


def cut(texts, pattern):
    """How often each piece occurs, as its tokens: at first these are its bytes."""
    pieces = Counter(piece for text in texts for piece in regex.findall(PATTERNS[pattern], text))
    return {tuple(bytes([byte]) for byte in piece.encode()): count for piece, count in pieces.items()}


def count_pairs(pieces):
    """How often each pair of tokens is adjacent."""
    counts = Counter()
    for piece, count in pieces.items():
        for pair in pairwise(piece):
            counts[pair] += count
    return counts


def join(piece, pair):
    """The piece with that pair as one token wherever it occurs, from the left."""
    if pair[0] not in piece:
        return piece
    tokens, i = [], 0
    while i < len(piece):
        width = 2 if piece[i : i + 2] == pair else 1
        tokens.append(b"".join(piece[i : i + width]))
        i += width
    return tuple(tokens)


def join_all(pieces, pair):
    """The pieces after that merge, but for those that are one token by now."""
    return {join(piece, pair): count for piece, count in pieces.items() if len(piece) > 1}


def slow_merges(texts, num_merges, pattern="qwen2"):
    """Byte pair encoding as it is defined; of equally frequent pairs, the one with the smaller ids is merged."""
    pieces, ids, trained = cut(texts, pattern), {bytes([byte]): byte for byte in range(256)}, []
    while len(trained) < num_merges and (counts := count_pairs(pieces)):
        pair = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        pieces = join_all(pieces, pair)
        ids[b"".join(pair)] = len(ids)
        trained.append(pair)
    return trained


def frequencies(texts, merges, pattern):
    """For each merge, at its step: the count of its pair, and that of the most frequent pair."""
    pieces = cut(texts, pattern)
    for pair in merges:
        counts = count_pairs(pieces)
        yield counts[pair], max(counts.values())
        pieces = join_all(pieces, pair)


@pytest.mark.slow
@settings(max_examples=400)
@given(texts=TEXTS, num_merges=st.integers(0, 60), pattern=st.sampled_from(sorted(PATTERNS)))
def test_rustbpe_learns_what_the_definition_says(texts, num_merges, pattern):
    assert merges(texts, num_merges, pattern=pattern) == slow_merges(texts, num_merges, pattern)


@settings(max_examples=100)
@given(texts=TEXTS, num_merges=st.integers(0, 60))
def test_tokenizers_joins_a_most_frequent_pair_each_time(texts, num_merges):
    trained = merges(texts, num_merges, trainer="tokenizers")
    assert len(trained) == len(slow_merges(texts, num_merges))
    assert all(count == greatest for count, greatest in frequencies(texts, trained, "qwen2"))


@each_trainer
@pytest.mark.parametrize("pattern", ["qwen2", r"[^\n]+|\n"])
def test_a_long_piece_is_cut_and_what_is_around_it_is_not(trainer, pattern):
    run, chosen = "=" * bpe.LONGEST, {"trainer": trainer, "pattern": pattern}
    assert merges([f"\nab\n{run}{run}\nab"], 300, **chosen) == merges(["\nab\n", run, run, "\nab"], 300, **chosen)
    assert max(len(left + right) for left, right in merges([f"é{run}" * 9], 300, **chosen)) <= 1024
