"""Reads a sample as `prepare` would with a section, and says what would be kept."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chatmill.app.look.excerpts import BEGINNING, COPIED_ENTRIES, Excerpt
from chatmill.app.look.guess import Guess
from chatmill.app.look.sample import Sample
from chatmill.conversation.chatml import Record
from chatmill.datasets.formats.containers import files_of
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.records import records
from chatmill.datasets.source_parameters import SourceParameters
from chatmill.datasets.tally import Tally

ENOUGH = 0.95  # share of kept entries with which no other guess is tried
MIN_KEPT = 0.8  # share of kept entries below which a section is of little use
_OF_SEVERAL_LINES = ("oasst", "documents")  # whose entries begin before an excerpt
_MAX_GUESSES = 3  # that are tried


@dataclass
class Trial:
    """What a section gives on a sample."""

    guess: Guess
    records: list[Record] = field(default_factory=list)
    entries: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of rejected entries
    first: dict[str, Reject] = field(default_factory=dict)  # of each reason, of entries and parts
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)  # by place: kept entries, and all
    counts: dict[str, Any] = field(default_factory=dict)  # of messages and bytes (chatmill.datasets.tally)
    problem: str = ""  # that ended the reading

    @property
    def share(self) -> float:
        """The share of entries that are kept."""
        return len(self.records) / self.entries if self.entries else 0.0


def best_trial(guesses: Sequence[Guess], sample: Sample) -> Trial:
    """The trial of the first guess that keeps nearly all, or else of the one that keeps most."""
    trials: list[Trial] = []
    for guess in guesses[:_MAX_GUESSES]:
        trials.append(try_section(guess, sample))
        if trials[-1].share >= ENOUGH:
            return trials[-1]
    return max(trials, key=lambda trial: trial.share)


def try_section(guess: Guess, sample: Sample) -> Trial:
    """What a section gives on a sample; nothing where the hub holds the rows."""
    trial, tally = Trial(guess), Tally()
    if guess.format == "hub":
        return trial
    seen = defaultdict[str, list[int]](lambda: [0, 0])
    several_files = len({excerpt.origin for excerpt in sample.excerpts}) > 1
    for excerpt in sample.excerpts:
        is_copy = excerpt.where != BEGINNING
        if is_copy and (guess.format in _OF_SEVERAL_LINES or "parent" in guess.columns):
            continue
        limit = min(COPIED_ENTRIES, sample.limit) if is_copy else sample.limit
        place = str(excerpt.origin) if several_files else excerpt.where
        try:
            _read(trial, tally, excerpt, parameters_of(guess, excerpt.file, limit=limit), seen[place])
        except (ValueError, OSError) as error:
            if trial.records and is_copy:
                continue  # a copy may begin within a row
            trial.problem = str(error)
    trial.kept = {place: (kept, count) for place, (kept, count) in seen.items()}
    trial.counts = tally.content()
    return trial


def parameters_of(guess: Guess, path: Path, **others: Any) -> SourceParameters:
    """The parameters of a section. Raises ValueError for columns that do not go together."""
    return SourceParameters.model_validate({**guess.section(), "path": path, **others})


def _read(trial: Trial, tally: Tally, excerpt: Excerpt, parameters: SourceParameters, seen: list[int]) -> None:
    for entry in records("look", parameters, tally):
        if isinstance(entry, Record):
            trial.records.append(entry)
        elif not entry.part:
            trial.reasons[entry.reason] += 1
        if isinstance(entry, Reject):
            trial.first.setdefault(entry.reason, _placed(entry, excerpt))
        is_entry = isinstance(entry, Record) or not entry.part
        seen[0] += isinstance(entry, Record)
        seen[1] += is_entry
        trial.entries += is_entry


def _placed(reject: Reject, excerpt: Excerpt) -> Reject:
    """The reject with its place in the original file."""
    if excerpt.file == excerpt.origin:
        return reject
    return replace(reject, place=f"{excerpt.origin} ({excerpt.where})")


def name_of(path: Path) -> str:
    """A name of a source, from that of a file."""
    stem = path.resolve().name.split(".")[0] if files_of(path) == [path] else path.resolve().name
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in stem).strip("_") or "source"
