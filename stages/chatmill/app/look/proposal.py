"""Proposes a section of params.yaml: tries guesses on a sample as `prepare` would read it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from chatmill.app.look.guess import MAX_NAMES, Guess, NoGuessError
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import MARKDOWN, MIN_ENTRIES, TEXT, YAML, Sample, ending, fill, first_rows, kind_of
from chatmill.app.look.texts import text_file
from chatmill.conversation import Record
from chatmill.datasets.formats.chat_logs import EXPORTS, LOGS, export_format, speakers
from chatmill.datasets.formats.containers import files_of, object_rows
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.formats.row_readers import inner_suffix
from chatmill.datasets.records import WANTED, records
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.talk.persona import read_persona

ENOUGH = 0.95  # share of kept entries with which no other guess is tried
MIN_KEPT = 0.8  # share of kept entries below which a section is of little use
_MAX_GUESSES = 4  # that are tried
_FIRST_ASSISTANT = 0.2  # share of conversations from which it is worth a word
_MAX_DIFFERENT = 60  # files of a folder that are looked at one by one
_GENERATED = 10_000  # conversations that are proposed to be generated


@dataclass
class Trial:
    """What a section gives on a sample; nothing where the hub holds the rows."""

    guess: Guess
    records: list[Record] = field(default_factory=list)
    entries: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of rejected entries
    first: dict[str, Reject] = field(default_factory=dict)  # of each reason, of entries and parts
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)  # by file: kept entries, and all
    tally: Tally = field(default_factory=Tally)
    problem: str = ""  # that ended the reading

    @property
    def share(self) -> float:
        return len(self.records) / self.entries if self.entries else 0.0

    def read(self, file: Path, limit: int) -> None:
        kept, before = len(self.records), self.entries
        try:
            parameters = SourceParameters.model_validate({**self.guess.section(), "path": file, "limit": limit})
            for entry in records("look", parameters, self.tally):
                if isinstance(entry, Record):
                    self.records.append(entry)
                    self.entries += 1
                    continue
                self.first.setdefault(entry.reason, entry)
                if not entry.part:
                    self.reasons[entry.reason] += 1
                    self.entries += entry.reason not in WANTED
        except (ValueError, OSError) as error:
            self.problem = str(error)
        self.kept[str(file)] = (len(self.records) - kept, self.entries - before)


def try_guess(guess: Guess, sample: Sample) -> Trial:
    trial = Trial(guess)
    is_whole = guess.format == "talk" or guess.format in EXPORTS
    for file in () if guess.format == "hub" else [sample.path] if is_whole else sample.read:
        trial.read(file, MIN_ENTRIES if guess.format == "documents" and sample.is_text else sample.limit)
    sample.is_complete &= not (guess.format in EXPORTS and trial.entries >= sample.limit)
    return trial


def best_trial(guesses: Sequence[Guess], sample: Sample) -> Trial:
    """The trial of the first guess that keeps nearly all, or else of the one that keeps most."""
    trials: list[Trial] = []
    for guess in guesses[:_MAX_GUESSES]:
        trials.append(try_guess(guess, sample))
        if trials[-1].share >= ENOUGH:
            return trials[-1]
    return max(trials, key=lambda trial: trial.share)


def propose(sample: Sample) -> Trial:
    """The likeliest section for a sample, tried on it. Raises NoGuessError.

    Of a folder whose files have different shapes, those of the commonest one remain in the sample.
    """
    guesses: list[Guess] = []
    different: list[Path] = []
    if sample.path.is_dir() and sample.kind == YAML:
        guesses = [_of_yaml(sample.path)]
    elif (guess := _of_export(sample)) is not None:
        guesses = [guess]
    elif 1 < len(sample.files) <= _MAX_DIFFERENT:
        guesses, different = _keep_commonest(sample)
    if not guesses or guesses[0].format == "table":  # whose columns all rows tell better than those of one file
        guesses = _guesses(sample.kind, sample.rows, sample.files[0])
    trial = best_trial(guesses, sample)
    if not trial.records and trial.guess.format != "hub":
        reason = trial.problem or f"with {_in_words(trial.guess)} no entry would be kept: {why(trial)}"
        raise NoGuessError(reason)
    if "tools" in trial.guess.columns and trial.reasons["bad_call"]:
        del trial.guess.columns["tools"]
        trial = try_guess(trial.guess, sample)
    if different:
        names = ", ".join(file.name for file in different[:5]) + (" …" if len(different) > 5 else "")
        trial.guess.doubts.append(f"files: these have another shape, and need sections of their own: {names}")
    trial.guess.doubts += _doubts(trial)
    return trial


def _of_export(sample: Sample) -> Guess | None:
    """The guess of what a chat program wrote, with who replies most as the assistant; None for all else."""
    name = export_format(sample.rows) if sample.kind == "JSON" or sample.is_text else None
    if name not in LOGS:
        return Guess(format=name) if name else None
    try:
        names = speakers(sample.files, name)
    except ValueError:
        return None
    if not names:
        raise NoGuessError("no name and colon follow its times: of some programs only the export as JSON is read")
    first = next(iter(names))
    others = ", ".join(f"{who!r} ({count:,})" for who, count in names.most_common(MAX_NAMES) if who != first)
    doubts = [
        f"roles: the model learns to speak as {first!r} ({names[first]:,} messages), as most of these are replies: set "
        f"whom you want, or several, of {others or 'no others'}; whom to leave out goes under ignore",
        "a conversation is over after four hours of silence, or with the first question after 20 messages",
    ]
    return Guess(format=name, roles={"assistant": [first]}, doubts=doubts)


def _keep_commonest(sample: Sample) -> tuple[list[Guess], list[Path]]:
    """Leave the files of the commonest shape by their bytes in the sample; returns its guesses, and the other files."""
    shapes = defaultdict[str, list[Path]](list)
    guesses: dict[str, list[Guess]] = {}
    errors = []
    for file in sample.files:
        kind = kind_of(file)[0]
        try:
            found = _guesses(kind, first_rows(file, kind, MIN_ENTRIES), file)
        except NoGuessError as error:
            errors.append(f"{file.name}: {error}")
        else:
            shape = f"{found[0].format} {found[0].columns}"
            shapes[shape].append(file)
            guesses.setdefault(shape, found)
    if not shapes:
        raise NoGuessError(errors[0])
    commonest = max(shapes, key=lambda shape: sum(file.stat().st_size for file in shapes[shape]))
    different = [file for file in sample.files if file not in shapes[commonest]]
    if different:
        every = sorted([*sample.files, *sample.others])
        sample.files = shapes[commonest]
        fill(sample, every)
    return guesses[commonest], different


def _guesses(kind: str, rows: list[Any], file: Path) -> list[Guess]:
    """The likeliest formats of rows, or of the paragraphs of a text, the best one first. Raises NoGuessError."""
    if kind == YAML:
        return [_of_yaml(file)]
    if kind in (TEXT, MARKDOWN):
        return [text_file(rows, markdown=kind == MARKDOWN)]
    if kind == "JSON" and len(rows) == 1 and inner_suffix(file).lower() != ".json" and object_rows(file) is not None:
        raise NoGuessError("one JSON object that holds rows: they are read where the name of the file ends in .json")
    return guess_rows(rows)


def _of_yaml(path: Path) -> Guess:
    """The guess of YAML: a persona, skills, or the name of a dataset of the hub. Raises NoGuessError.

    A persona, a file or a folder, is read, so that what is wrong in it, or can hardly be learnt, is said before any
    training.
    """
    keys = set[str]()
    try:
        for file in files_of(path, ["*.yaml", "*.yml"]):
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            keys |= {*content} if isinstance(content, dict) else set()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoGuessError(f"not YAML: {' '.join(str(error).split())}") from error
    for format, needed in (("talk", {"intents"}), ("skills", {"skills"}), ("hub", {"dataset", "revision"})):
        if needed <= keys:
            if format == "hub":
                return Guess(format=format)
            doubts = [f"limit: conversations are generated, here {_GENERATED:,}: set how many you want"]
            if format == "talk":
                doubts += read_persona(path).warnings
            return Guess(format=format, limit=_GENERATED, doubts=doubts)
    raise NoGuessError("YAML is read where it holds intents (talk), skills, or a dataset of the hub and its revision")


def _doubts(trial: Trial) -> list[str]:
    doubts = []
    opened = trial.tally.content()["messages"]["rejected"].get("assistant_first", 0)
    if opened > _FIRST_ASSISTANT * max(1, len(trial.records)):
        doubts.append("many begin with the assistant: these messages are left out, or assistant_first: keep keeps them")
    whole = trial.share
    for place, (kept, count) in trial.kept.items():
        if count >= MIN_ENTRIES and abs(kept / count - whole) > 0.1 and len(trial.kept) > 1:
            doubts.append(f"{place} differs: {kept:,} of {count:,} entries are kept there, {whole:.0%} of all")
    if trial.problem:
        doubts.append(f"reading ended early: {trial.problem}")
    if trial.share < MIN_KEPT and trial.guess.format != "hub":  # which is not read here
        doubts.append(f"only {trial.share:.0%} of the sampled entries would be kept: {why(trial)}")
    return doubts


def why(trial: Trial) -> str:
    """The reasons of rejected entries, with the first of the most frequent one."""
    if not trial.reasons:
        return "it has none"
    reason, count = trial.reasons.most_common(1)[0]
    first = trial.first[reason]
    return f"{reason} ({count:,}), as {first.place}: {first.detail}"


def _in_words(guess: Guess) -> str:
    found = {key: value for key, value in guess.section().items() if key != "limit"}
    return yaml.safe_dump(found, default_flow_style=True, allow_unicode=True, sort_keys=False, width=1000).strip()


def name_of(path: Path) -> str:
    """A name of a source, from that of a file or folder."""
    name = path.resolve().name
    stem = name if path.is_dir() else name.split(".")[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in stem).strip("_") or "source"


def section_text(sample: Sample, trial: Trial) -> str:
    content: dict[str, Any] = {"path": sample.path.as_posix(), "format": trial.guess.format}
    if (patterns := _patterns(sample)) and trial.guess.format not in EXPORTS:
        content["files"] = patterns if len(patterns) > 1 else patterns[0]
    content |= trial.guess.section()
    rejected = min(1.0, round(1.5 * (1 - trial.share) + 0.01, 2))  # with room for what the sample did not show
    if (
        trial.reasons
        and trial.share >= MIN_KEPT
        and rejected > SourceParameters.model_fields["max_reject_rate"].default
    ):
        content["max_reject_rate"] = rejected
    lines = [f"{key}: {_flow(value)}" for key, value in content.items()]
    return "prepare:\n" + f"  {name_of(sample.path)}:\n" + "".join(f"    {line}\n" for line in lines)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _patterns(sample: Sample) -> list[str]:
    if not sample.path.is_dir() or not sample.others:
        return []
    patterns = sorted({f"*{ending(file)}" for file in sample.files})
    if any(fnmatch(file.name, pattern) for file in sample.others for pattern in patterns):
        return [file.relative_to(sample.path).as_posix() for file in sample.files]
    return patterns
