"""Minimal pairs: how often a model finds an acceptable sentence more probable than one that differs from it in a word.

    look at this purple things .        (unacceptable)
    look at this purple thing .

Files are text, one for each paradigm, in which a line with the unacceptable sentence is followed by one with the
acceptable sentence, as in Zorro (Huebner et al. 2021, github.com/phueb/Zorro); or JSON lines with `sentence_good` and
`sentence_bad`, as in BLiMP (Warstadt et al. 2020, arXiv:1912.00582).

A sentence's score is its total log-probability as the first message of the assistant. A chat model is trained on
messages, in full on those of the assistant, and never on text without a header. For a model without a chat template
that is the text after the BOS token. The token that ends a message is not scored. Ties count one half.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.conversation import Conversation, LossKind, Message, Segment
from chatmill.evaluation.bits_per_byte import Ids
from chatmill.evaluation.intervals import Estimate, mean_of_shares, share
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, check_text

TIE = 1e-6  # nats, within which two sentences are equally probable

Nats = Callable[[list[Ids]], list[np.ndarray]]
"""Maps texts to the nats of each of their tokens: (T,) -> (T,)."""


class Pair(NamedTuple):
    """Two sentences, and their file and line."""

    good: str
    bad: str
    place: str


class PairScores(NamedTuple):
    """The share of pairs in which the acceptable sentence wins, by paradigm, and the mean of the paradigms."""

    paradigms: dict[str, Estimate]
    mean: Estimate

    def rows(self) -> list[tuple[str, Estimate]]:
        """The paradigms, and their mean last."""
        return [*self.paradigms.items(), ("mean", self.mean)]


def read_pairs(path: Path, limit: int | None = None) -> dict[str, list[Pair]]:
    """The first `limit` pairs of a file, or of each .txt and .jsonl file of a folder, by the name of the file.

    Raises ValueError with file and line.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in (".txt", ".jsonl")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no pairs: expected .txt or .jsonl files")
    return {file.stem: _read_file(file)[:limit] for file in files}


def score_pairs(
    paradigms: Mapping[str, Sequence[Pair]],
    tokenizer: ChatTokenizer,
    continue_final_message: Callable[[Conversation], list[Segment]],
    nats: Nats,
) -> PairScores:
    """Compare the sentences of each pair under any model that gives nats.

    Raises ValueError where the probability of a sentence is 0 or not a number.
    """
    pairs = [pair for group in paradigms.values() for pair in group]
    sentences = [text for pair in pairs for text in (pair.good, pair.bad)]
    segments = [continue_final_message([Message.from_text("assistant", text)]) for text in sentences]
    encoded = tokenizer.encode_conversations(segments)
    borders = encoded.offsets[1:-1]
    masks = np.split(encoded.loss == LossKind.TRAINED, borders)
    found = nats(np.split(encoded.ids, borders))
    totals = np.array([one[mask].sum() for one, mask in zip(found, masks, strict=True)]).reshape(len(pairs), 2)
    for pair, row in zip(pairs, totals, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(f"{pair.place}: the model's probability of this pair is 0 or not a number")
    lead = totals[:, 1] - totals[:, 0]
    outcomes = np.where(np.abs(lead) <= TIE, 0.5, lead > 0).tolist()
    shares = {name: share([outcomes.pop(0) for _ in group]) for name, group in paradigms.items()}
    return PairScores(shares, mean_of_shares(list(shares.values())))


def equal_nats(documents: list[Ids]) -> list[np.ndarray]:
    """The nats of a model of equal logits, which prefers the sentence of fewer tokens; 0.5 is chance only beside it."""
    return [np.ones(len(ids)) for ids in documents]


def _read_file(file: Path) -> list[Pair]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not text.strip():
        raise ValueError(f"{file}: no pairs: the file is empty")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(f"{file}:{number}: an empty line: expected a sentence")
    pairs = _json_pairs(file, lines) if file.suffix == ".jsonl" else _text_pairs(file, lines)
    for pair in pairs:
        for sentence in (pair.good, pair.bad):
            try:
                check_text(sentence)
            except ValueError as error:
                raise ValueError(f"{pair.place}: {error}") from error
    return pairs


def _text_pairs(file: Path, lines: Sequence[str]) -> list[Pair]:
    if len(lines) % 2:
        raise ValueError(
            f"{file}: an odd number of lines, {len(lines):,}: expected pairs, the unacceptable sentence first"
        )
    return [Pair(lines[i + 1], lines[i], f"{file}:{i + 1}") for i in range(0, len(lines), 2)]


def _json_pairs(file: Path, lines: Sequence[str]) -> list[Pair]:
    result = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{number}: not JSON: {error}") from error
        good, bad = (row.get(key) if isinstance(row, dict) else None for key in ("sentence_good", "sentence_bad"))
        if not isinstance(good, str) or not isinstance(bad, str) or not good.strip() or not bad.strip():
            raise ValueError(f"{file}:{number}: expected an object with the texts sentence_good and sentence_bad")
        result.append(Pair(good, bad, f"{file}:{number}"))
    return result
