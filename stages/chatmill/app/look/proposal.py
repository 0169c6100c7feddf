"""Proposes a section of params.yaml: tries guesses on a sample as `prepare` would read it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from chatmill.app.look.guess import Guess, NoGuessError
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import MARKDOWN, MIN_ENTRIES, TEXT, YAML, Sample
from chatmill.app.look.texts import text_file
from chatmill.conversation import Record
from chatmill.datasets.formats.chat_logs import EXPORTS, LOGS, export_format, speakers
from chatmill.datasets.formats.containers import files_of, object_rows
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix
from chatmill.datasets.records import WANTED, records
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.talk.persona import read_persona

ENOUGH = 0.95  # share of kept entries with which no other guess is tried
MIN_KEPT = 0.8  # share of kept entries below which a section is of little use
_MAX_GUESSES = 6  # that are tried
_GENERATED = 10_000  # conversations that are proposed to be generated


@dataclass
class Trial:
    """What a section gives on a sample; nothing where the hub holds the rows."""

    guess: Guess
    records: list[Record] = field(default_factory=list)
    kept: set[Path] = field(default_factory=set)  # files with records
    entries: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of rejected entries
    first: dict[str, Reject] = field(default_factory=dict)  # of each reason, of entries and parts
    tally: Tally = field(default_factory=Tally)
    problem: str = ""  # that ended the reading

    @property
    def share(self) -> float:
        return len(self.records) / self.entries if self.entries else 0.0

    @property
    def is_useful(self) -> bool:
        return self.guess.format == "hub" or self.share >= MIN_KEPT

    def read(self, file: Path, limit: int) -> None:
        try:
            parameters = SourceParameters.model_validate({**self.guess.section(), "path": file, "limit": limit})
            for entry in records("look", parameters, self.tally):
                if isinstance(entry, Record):
                    self.records.append(entry)
                    self.kept.add(file)
                    self.entries += 1
                    continue
                self.first.setdefault(entry.reason, entry)
                if not entry.part:
                    self.reasons[entry.reason] += 1
                    self.entries += entry.reason not in WANTED
        except (ValueError, OSError) as error:
            self.problem = str(error)

    def why(self) -> str:
        """The reasons of rejected entries, with the first of the most frequent one."""
        if self.problem or not self.reasons:
            return self.problem or "it has none"
        reason, count = self.reasons.most_common(1)[0]
        return f"{reason} ({count:,}), as {self.first[reason].place}: {self.first[reason].detail}"


def best_trial(guesses: Sequence[Guess], sample: Sample) -> Trial:
    """The trial of the first guess that keeps nearly all, or else of the one that keeps most."""
    trials: list[Trial] = []
    for guess in guesses[:_MAX_GUESSES]:
        trials.append(trial := Trial(guess))
        is_whole = guess.format == "talk" or guess.format in EXPORTS
        for file in () if guess.format == "hub" else [sample.path] if is_whole else sample.rows:
            trial.read(file, MIN_ENTRIES if guess.format == "documents" and sample.is_text else sample.limit)
        sample.is_complete &= not (guess.format in EXPORTS and trial.entries >= sample.limit)
        if trial.share >= ENOUGH:
            return trial
    return max(trials, key=lambda trial: trial.share)


def propose(sample: Sample) -> Trial:
    """The likeliest section for a sample, tried on it. Raises NoGuessError.

    Of a folder whose files have different shapes, those remain in the sample that the section of the largest one reads.
    """
    guess = _of_yaml(sample.path) if sample.kind == YAML else _of_export(sample)
    trial = best_trial([guess] if guess else _of_largest(sample), sample)
    if guess is None and len(sample.rows) > 1 and trial.records:
        different = [file for file in sample.rows if file not in trial.kept]
        if different:
            sample.files = [file for file in sample.files if file not in different]
            sample.read()
        guesses = _guesses(sample.kind, sample.all_rows) if trial.guess.format == "table" else []
        trial = best_trial([*guesses, trial.guess], sample)
        if different:
            names = ", ".join(file.name for file in different[:5]) + (" …" if len(different) > 5 else "")
            trial.guess.doubts.append(f"files: these have another shape, and need sections of their own: {names}")
    if not trial.records and trial.guess.format != "hub":
        raise NoGuessError(f"with {_flow(trial.guess.section())} no entry would be kept: {trial.why()}")
    if trial.problem or not trial.is_useful:
        trial.guess.doubts.append(f"of the sampled entries {trial.share:.0%} would be kept: {trial.why()}")
    return trial


def _of_largest(sample: Sample) -> list[Guess]:
    """The guesses of the largest file of which there are some. Raises NoGuessError."""
    errors = []
    for file in sorted(sample.rows, key=lambda file: -file.stat().st_size):
        rows = sample.rows[file]
        if sample.kind == "JSON" and len(rows) == 1 and inner_suffix(file).lower() != ".json" and object_rows(file):
            raise NoGuessError("one JSON object of rows: they are read where the name of the file ends in .json")
        try:
            return _guesses(sample.kind, rows)
        except NoGuessError as error:
            errors.append(f"{file.name}: {error}" if len(sample.rows) > 1 else str(error))
    raise NoGuessError(errors[0])


def _guesses(kind: str, rows: list[Any]) -> list[Guess]:
    return [text_file(rows, markdown=kind == MARKDOWN)] if kind in (TEXT, MARKDOWN) else guess_rows(rows)


def _of_export(sample: Sample) -> Guess | None:
    """The guess of what a chat program wrote, with who replies most as the assistant; None for all else."""
    name = export_format(sample.all_rows) if sample.kind == "JSON" or sample.is_text else None
    if name not in LOGS:
        return Guess(format=name) if name else None
    try:
        names = speakers(sample.files, name)
    except ValueError:
        return None
    if not names:
        raise NoGuessError("no name and colon follow its times: of some programs only the export as JSON is read")
    first = next(iter(names))
    doubts = [
        f"roles: the model learns to speak as {first!r}, as most of these messages are replies: set whom you want, or "
        "several; whom to leave out goes under ignore",
        "a conversation is over after four hours of silence, or with the first question after 20 messages",
    ]
    return Guess(format=name, roles={"assistant": [first]}, doubts=doubts, names=names)


def _of_yaml(path: Path) -> Guess:
    """The guess of YAML: a persona, whose faults are told, skills, or a dataset of the hub. Raises NoGuessError."""
    keys = set[str]()
    try:
        for file in files_of(path, ["*.yaml", "*.yml"]):
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            keys |= {*content} if isinstance(content, dict) else set()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoGuessError(f"not YAML: {' '.join(str(error).split())}") from error
    doubts = [f"limit: conversations are generated, here {_GENERATED:,}: set how many you want"]
    if "intents" in keys:
        return Guess(format="talk", limit=_GENERATED, doubts=[*doubts, *read_persona(path).warnings])
    if "skills" in keys:
        return Guess(format="skills", limit=_GENERATED, doubts=doubts)
    if {"dataset", "revision"} <= keys:
        return Guess(format="hub")
    raise NoGuessError("YAML is read where it holds intents (talk), skills, or a dataset of the hub and its revision")


def section_text(sample: Sample, trial: Trial) -> str:
    content: dict[str, Any] = {"path": sample.path.as_posix(), "format": trial.guess.format}
    if (patterns := _patterns(sample)) and trial.guess.format not in EXPORTS:
        content["files"] = patterns if len(patterns) > 1 else patterns[0]
    content |= trial.guess.section()
    rejected = min(1.0, round(1.5 * (1 - trial.share) + 0.01, 2))  # with room for what the sample did not show
    if trial.reasons and trial.is_useful and rejected > SourceParameters.model_fields["max_reject_rate"].default:
        content["max_reject_rate"] = rejected
    lines = [f"    {key}: {_flow(value)}\n" for key, value in content.items()]
    name = sample.path.resolve().name
    stem = name if sample.path.is_dir() else name.split(".")[0]
    source = re.sub(r"[^A-Za-z0-9_-]", "_", stem).strip("_") or "source"
    return f"prepare:\n  {source}:\n{''.join(lines)}"


def _flow(value: Any) -> str:
    """The value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _patterns(sample: Sample) -> list[str]:
    """Patterns such as `*.jsonl.gz` of the files, or their paths if one fits another file, too; none without others."""
    patterns = {f"*{inner_suffix(file)}{file.suffix if file.suffix in PACKED else ''}" for file in sample.files}
    if any(fnmatch(file.name, pattern) for file in sample.others for pattern in patterns):
        return [file.relative_to(sample.path).as_posix() for file in sample.files]
    return sorted(patterns) if sample.others else []
