"""The conversations on which two sides differ most, word by word.

A token's nats are divided evenly among its bytes, and a word has those of its bytes; so tokenizers need not agree.

Shapes: L bytes of the scored text of a document.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from chatmill.app.measurement import ScoredDocument, corpus_nats, encode_documents
from chatmill.app.verdict.compared_runs import Run
from chatmill.evaluation.corpus import Corpus

NUM_DOCUMENTS = 20
MIN_BITS = 1.0  # of a document or word that is told
_WORD = re.compile(rb"\s*\S+|\s+")


class Word(NamedTuple):
    """A word with the white space before it, and how many bits more it takes under the second side."""

    text: str
    bits: float


class DocumentDifference(NamedTuple):
    """A document in parts, between control tokens, and how many bits more it takes under the second side."""

    place: str
    bits: float
    parts: list[list[Word]]


class ScoredText(NamedTuple):
    """The scored text of a document, with the nats of each byte."""

    text: bytes
    nats: np.ndarray  # (L,)
    breaks: list[int]  # where control tokens stand between bytes


def differing_documents(
    first: Sequence[Run], second: Sequence[Run], documents: Sequence[ScoredDocument], which: str
) -> list[DocumentDifference]:
    """The NUM_DOCUMENTS on which the sides differ most, by MIN_BITS or more; more than 0 are easier for the first."""
    of_first, of_second = (np.mean([run.text.sums[which][0] for run in side], axis=0) for side in (first, second))
    differences = (of_second - of_first) / np.log(2)
    order = np.argsort(-np.abs(differences), kind="stable")[:NUM_DOCUMENTS]
    order = order[np.abs(differences[order]) >= MIN_BITS].tolist()
    chosen = [documents[i] for i in order]
    scored = [[score(run, chosen, which) for run in side] for side in (first, second)]
    result = []
    for number, i in enumerate(order):
        one, other = (_mean([texts[number] for texts in side]) for side in scored)
        parts = word_differences(one, other)
        result.append(DocumentDifference(documents[i].place, float(differences[i]), parts))
    return result


def score(run: Run, documents: Sequence[ScoredDocument], which: str) -> list[ScoredText]:
    """The scored text of each document under a run."""
    corpus = encode_documents(documents, run.loaded)
    nats = corpus_nats(run.loaded.engine, corpus, run.text.context, run.text.stride)
    is_scored = corpus.is_scored & corpus.is_trained if which == "assistant" else corpus.is_scored
    return [_scored_text(corpus, nats, is_scored, slice(*corpus.offsets[i : i + 2])) for i in range(len(documents))]


def _scored_text(corpus: Corpus, nats: np.ndarray, is_scored: np.ndarray, tokens: slice) -> ScoredText:
    lengths = np.where(is_scored, corpus.num_bytes, 0)[tokens]
    ends = np.cumsum(lengths)
    texts = (
        corpus.texts[i][int(escaped) :]
        for i, escaped, scored in zip(corpus.ids[tokens], corpus.escaped[tokens], is_scored[tokens], strict=True)
        if scored
    )
    return ScoredText(
        b"".join(texts),
        np.repeat(nats[tokens] / np.maximum(lengths, 1), lengths),
        ends[~is_scored[tokens]].tolist(),
    )


def _mean(texts: Sequence[ScoredText]) -> ScoredText:
    return texts[0]._replace(nats=np.mean([one.nats for one in texts], axis=0))


def word_differences(first: ScoredText, second: ScoredText) -> list[list[Word]]:
    """The words of a text, in the parts between control tokens, with how many bits more each takes under the second."""
    assert first.text == second.text, "both sides score the same bytes"
    bits = np.concatenate(([0.0], np.cumsum(second.nats - first.nats))) / np.log(2)
    borders = sorted({0, *first.breaks, len(first.text)})
    parts = []
    for start, end in pairwise(borders):
        places = [(start + match.start(), start + match.end()) for match in _WORD.finditer(first.text[start:end])]
        words = [Word(first.text[a:b].decode(errors="replace"), float(bits[b] - bits[a])) for a, b in places]
        if any(word.text.strip() or abs(word.bits) >= MIN_BITS for word in words):
            parts.append(words)
    return parts
