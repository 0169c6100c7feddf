"""What a comparison of two or more sides comes to: the differences, and a sentence that says which are clear.

B needs 1.3 % fewer bits than A (0.6 to 2.0); skills: no clear difference (91.2 % and 92.0 %); hits@1: B better
(7.0 % and 14.0 %, p = 0.01). With another seed alone A would differ by up to 0.8 %, as the default model does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.measurement import ScoredDocument, encode_documents
from chatmill.app.verdict.compared_runs import Run
from chatmill.app.verdict.significance import BitsDifference, ShareDifference, bits_difference, share_difference
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte
from chatmill.evaluation.intervals import Estimate, bits_interval, share
from chatmill.evaluation.ngram import read_counted_text, score_with_ngrams


@dataclass(frozen=True)
class Side:
    """A run, or several that differ by their seed alone; `which` text they are scored on."""

    letter: str
    runs: Sequence[Run]
    which: str

    @cached_property
    def nats(self) -> list[np.ndarray]:
        """For each run the nats (D,) of each document."""
        return [run.text.sums[self.which][0] for run in self.runs]

    @property
    def names(self) -> str:
        """The names of the runs."""
        return ", ".join(run.name for run in self.runs)

    @property
    def bits_per_byte(self) -> Estimate:
        """The mean of the runs, with the interval over documents."""
        num_bytes = self.runs[0].text.sums[self.which][1]
        nats = np.mean(self.nats, axis=0)
        value = bits_per_byte(float(nats.sum()), int(num_bytes.sum()))
        return Estimate(value, bits_interval(nats, num_bytes), int(np.count_nonzero(num_bytes)))

    @property
    def skills(self) -> Estimate:
        """The share of right answers to exercises; its interval is that of one run."""
        return share(np.mean([run.correct for run in self.runs], axis=0).tolist())

    @property
    def hits_at_1(self) -> Estimate:
        """The share of replies that are found among others; its interval is that of one run."""
        return share(np.mean([run.hits for run in self.runs], axis=0).tolist())

    @property
    def token_ms(self) -> float:
        """The median milliseconds of a token, of the fastest run."""
        return min(run.token_ms for run in self.runs)

    @property
    def megabytes(self) -> float:
        """The size of the weights."""
        return self.runs[0].loaded.engine.num_bytes / 1e6


class Difference(NamedTuple):
    """Between the first side and another one."""

    side: Side
    bits: BitsDifference
    skills: ShareDifference | None
    hits: ShareDifference | None


def differences(sides: Sequence[Side]) -> list[Difference]:
    """The difference of each other side from the first."""
    first = sides[0]
    return [
        Difference(
            side,
            bits_difference(first.nats, side.nats),
            share_difference([run.correct for run in first.runs], [run.correct for run in side.runs]),
            share_difference([run.hits for run in first.runs], [run.hits for run in side.runs]),
        )
        for side in sides[1:]
    ]


def sentence(first: Side, difference: Difference) -> str:
    """The verdict on a difference, in a sentence or two."""
    other, bits = difference.side.letter, difference.bits
    parts = [_bits_part(first.letter, other, bits)]
    for name, found in (("skills", difference.skills), ("hits@1", difference.hits)):
        if found:
            parts.append(f"{name}: {_share_part(first.letter, other, found)}")
    rerun = f"With another seed alone {first.letter} would differ by up to {_percent(bits.noise.of_rerun)} %"
    source = (
        f"by these {bits.noise.runs} runs and the default model" if bits.noise.runs else "as the default model does"
    )
    return f"{'; '.join(parts)}. {rerun}, {source}."


def _bits_part(first: str, other: str, bits: BitsDifference) -> str:
    if bits.interval is None:
        return f"bits: too few conversations to tell ({100 * bits.value:+.1f} %)"
    low, high = bits.interval
    if not bits.is_clear:
        return f"bits: no clear difference ({100 * bits.value:+.1f} %, {100 * low:+.1f} to {100 * high:+.1f})"
    more, limits = ("more", (low, high)) if bits.value > 0 else ("fewer", (-high, -low))
    return (
        f"{other} needs {_percent(abs(bits.value))} % {more} bits than {first} ({' to '.join(map(_percent, limits))})"
    )


def _share_part(first: str, other: str, found: ShareDifference) -> str:
    shares = f"{_percent(found.first)} % and {_percent(found.second)} %"
    if not found.is_clear:
        return f"no clear difference ({shares})"
    better = other if found.second > found.first else first
    p = f"p = {found.p:.2g}" if found.p >= 0.001 else "p < 0.001"
    return f"{better} better ({shares}, {p})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def frontier(sides: Sequence[Side]) -> list[Side]:
    """The sides that no other one equals or betters in bits per byte, latency and size, and betters in one of them."""

    def figures(side: Side) -> np.ndarray:
        return np.array([side.bits_per_byte.value or 0.0, side.token_ms, side.megabytes])

    def is_beaten(side: Side) -> bool:
        own = figures(side)
        return any((figures(one) <= own).all() and (figures(one) < own).any() for one in sides if one is not side)

    return [side for side in sides if not is_beaten(side)]


def baseline_bits(side: Side, documents: Sequence[ScoredDocument], tokens: Path | None) -> dict[str, float | None]:
    """Bits per byte of the same text by xz, and by the n-grams of encoded training text, if it is given."""
    run = side.runs[0]
    _, tokenizer, template, *_ = run.loaded
    corpus = encode_documents(documents, run.loaded)
    result = {"xz": baselines(corpus.text())["xz"]} if side.which == "all" else {}
    if tokens is not None:
        counted = read_counted_text(tokens, tokenizer, template.name, Path(run.name))
        nats = score_with_ngrams(counted, tokenizer, corpus.ids, corpus.offsets).nats
        result["ngram"] = corpus.bits_per_byte(nats, trained_only=side.which == "assistant")
    return result
