"""How long answers are, in tokens: those of a model beside the true ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer


def measure_lengths(answers: Iterable[str], tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The mean and the greatest length, and the number of answers by length; without any answers nothing.

    Lengths are counted from each power of two to below the next, under the lower one: {"0": 1, "4": 7}.
    """
    lengths = [len(tokenizer.encode(answer)) for answer in answers]
    if not lengths:
        return {}
    return {"mean": sum(lengths) / len(lengths), "longest": max(lengths), "counts": count_by_power(lengths)}


def count_by_power(lengths: Sequence[int]) -> dict[str, int]:
    """How many numbers have each greatest power of two in them; 0 counts by itself."""
    counts = Counter(1 << length.bit_length() - 1 if length else 0 for length in lengths)
    return {str(power): counts[power] for power in sorted(counts)}
