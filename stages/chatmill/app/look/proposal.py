"""Proposes a section of params.yaml: tries guesses on the sample as `prepare` would read it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from chatmill.app.look.guess import MAX_NAMES, Guess, NoGuessError, text_file
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import Container, FileKind, Sample, ending, fill, first_rows, kind_of
from chatmill.conversation import Record
from chatmill.datasets.formats.chat_logs import EXPORTS, LOGS, export_format, speakers
from chatmill.datasets.formats.containers import files_of, object_rows
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.records import WANTED, records
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.talk.persona import read_persona

ENOUGH = 0.95  # share of kept entries with which no other guess is tried
MIN_KEPT = 0.8  # share of kept entries below which a section is of little use
_MAX_GUESSES = 3  # that are tried


@dataclass
class Trial:
    guess: Guess
    records: list[Record] = field(default_factory=list)
    entries: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of rejected entries
    first: dict[str, Reject] = field(default_factory=dict)  # of each reason, of entries and parts
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)  # by place: kept entries, and all
    counts: dict[str, Any] = field(default_factory=dict)  # of messages and bytes (chatmill.datasets.repair)
    problem: str = ""  # that ended the reading

    @property
    def share(self) -> float:
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
    whole = guess.format == "talk" or guess.format in EXPORTS
    for file in [sample.path] if whole else sample.read:
        try:
            _read(trial, tally, parameters_of(guess, file, limit=sample.limit), seen[str(file)])
        except (ValueError, OSError) as error:
            trial.problem = str(error)
    sample.is_complete = sample.is_complete and not (guess.format in EXPORTS and trial.entries >= sample.limit)
    trial.kept = {place: (kept, count) for place, (kept, count) in seen.items()}
    trial.counts = tally.content()
    return trial


def parameters_of(guess: Guess, path: Path, **others: Any) -> SourceParameters:
    """The parameters of a section. Raises ValueError for columns that do not go together."""
    return SourceParameters.model_validate({**guess.section(), "path": path, **others})


def _read(trial: Trial, tally: Tally, parameters: SourceParameters, seen: list[int]) -> None:
    for entry in records("look", parameters, tally):
        if isinstance(entry, Record):
            trial.records.append(entry)
        elif not entry.part:
            trial.reasons[entry.reason] += 1
        if isinstance(entry, Reject):
            trial.first.setdefault(entry.reason, entry)
        is_entry = isinstance(entry, Record) or not (entry.part or entry.reason in WANTED)
        seen[0] += isinstance(entry, Record)
        seen[1] += is_entry
        trial.entries += is_entry


def name_of(path: Path) -> str:
    """A name of a source, from that of a file."""
    stem = path.resolve().name.split(".")[0] if files_of(path) == [path] else path.resolve().name
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in stem).strip("_") or "source"


# Proposes the section of params.yaml for a file or folder that nobody has described.

_FIRST_ASSISTANT = 0.2  # share of conversations from which it is worth a word
_FEW = 30  # entries that say little
_MAX_DIFFERENT = 60  # files of a folder that are looked at one by one
_GENERATED = 10_000  # conversations that are proposed to be generated


def propose(sample: Sample) -> Trial:
    """The likeliest section for a sample, tried on it. Raises NoGuessError.

    Of a folder whose files have different shapes, those of the commonest one remain in the sample.
    """
    guesses: list[Guess] = []
    different: list[Path] = []
    if sample.path.is_dir() and sample.kind.container == Container.YAML:
        guesses = [_of_yaml(sample.path)]
    elif (guess := _of_export(sample)) is not None:
        guesses = [guess]
    elif 1 < len(sample.files) <= _MAX_DIFFERENT:
        guesses, different = _keep_commonest(sample)
    if not guesses or guesses[0].format == "table":
        guesses = _guesses(sample.kind, sample.rows, sample.files[0])
    if different:
        names = ", ".join(file.name for file in different[:5]) + (" …" if len(different) > 5 else "")
        guesses[0].doubts.append(f"files: these have another shape, and need sections of their own: {names}")
    if guesses[0].format == "documents" and sample.kind.is_text:
        sample.limit = _FEW
    if guesses[0].format == "hub":
        return Trial(guesses[0])
    trial = best_trial(guesses, sample)
    if trial.problem and not trial.records:
        raise NoGuessError(trial.problem)
    if not trial.records:
        raise NoGuessError(f"with {_in_words(trial.guess)} no entry would be kept: {why(trial)}")
    if "tools" in trial.guess.columns and trial.reasons["bad_call"]:
        del trial.guess.columns["tools"]
        trial = try_section(trial.guess, sample)
    trial.guess.doubts += _doubts(trial)
    return trial


def _of_export(sample: Sample) -> Guess | None:
    """The guess of what a chat program wrote, with who replies most as the assistant; None for all else."""
    name = export_format(sample.rows) if sample.kind.is_json or sample.kind.is_text else None
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
    """Leave the files in the sample that have the commonest shape by their bytes; returns its guess, and the others."""
    shapes: dict[str, list[Path]] = {}
    guesses: dict[str, Guess] = {}
    errors = []
    for file in sample.files:
        kind = kind_of(file)
        try:
            found = _guesses(kind, first_rows(file, kind, _FEW), file)[0]
        except NoGuessError as error:
            errors.append(f"{file.name}: {error}")
        else:
            shape = f"{found.format} {found.columns}"
            shapes.setdefault(shape, []).append(file)
            guesses.setdefault(shape, found)
    if not shapes:
        raise NoGuessError(errors[0])
    shape = max(shapes, key=lambda name: sum(file.stat().st_size for file in shapes[name]))
    different = [file for file in sample.files if file not in shapes[shape]]
    if different:
        every = [*sample.files, *sample.others]
        sample.files = shapes[shape]
        fill(sample, sorted(every))
    return [guesses[shape]], different


def _guesses(kind: FileKind, rows: list[Any], file: Path) -> list[Guess]:
    """The likeliest formats of rows, or of the paragraphs of a text, the best one first. Raises NoGuessError."""
    if kind.container == Container.YAML:
        return [_of_yaml(file)]
    if kind.is_text:
        return [text_file(rows, markdown=kind.container == Container.MARKDOWN)]
    if kind.container == Container.JSON_OBJECT:
        return [_of_object(rows, file)]
    if kind.container == Container.JSON_ROWS:
        found = guess_rows(rows)
        return found if found[0].format == "chitchat" else guess_rows(rows, json=False)
    return guess_rows(rows, json=kind.is_json)


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


def _of_object(rows: list[Any], file: Path) -> Guess:
    """The guess of a JSON document that is one object, and so one row. Raises NoGuessError."""
    merged = {key: value for row in rows for key, value in row.items()}
    try:
        guess = guess_rows([merged])[0]
    except NoGuessError:
        if object_rows(file) is None:
            raise
    else:
        if guess.format == "chitchat" or object_rows(file) is None:
            return guess
    raise NoGuessError("one JSON object that holds rows: they are read where the name of the file ends in .json")


def _doubts(trial: Trial) -> list[str]:
    doubts = []
    opened = trial.counts["messages"]["rejected"].get("assistant_first", 0)
    if opened > _FIRST_ASSISTANT * max(1, len(trial.records)):
        doubts.append("many begin with the assistant: these messages are left out, or assistant_first: keep keeps them")
    whole = trial.share
    for place, (kept, count) in trial.kept.items():
        if count >= _FEW and abs(kept / count - whole) > 0.1 and len(trial.kept) > 1:
            doubts.append(f"{place} differs: {kept:,} of {count:,} entries are kept there, {whole:.0%} of all")
    if trial.problem:
        doubts.append(f"reading ended early: {trial.problem}")
    if trial.share < MIN_KEPT:
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


def section_text(sample: Sample, trial: Trial) -> str:
    content: dict[str, Any] = {"path": sample.path.as_posix(), "format": trial.guess.format}
    if (patterns := _patterns(sample)) and trial.guess.format not in EXPORTS:
        content["files"] = patterns if len(patterns) > 1 else patterns[0]
    content |= trial.guess.section()
    allowed = SourceParameters.model_fields["max_reject_rate"].default
    if trial.share >= MIN_KEPT and (rejected := rounded_up(1 - trial.share)) > allowed and trial.reasons:
        content["max_reject_rate"] = rejected
    lines = [f"{key}: {_flow(value)}" for key, value in content.items()]
    return "prepare:\n" + f"  {name_of(sample.path)}:\n" + "".join(f"    {line}\n" for line in lines)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def rounded_up(share: float) -> float:
    """A share with one or two digits, with room for what the sample did not show."""
    return min(1.0, round(1.5 * share + 0.01, 2))


def _patterns(sample: Sample) -> list[str]:
    if not sample.path.is_dir() or not sample.others:
        return []
    patterns = sorted({f"*{ending(file)}" for file in sample.files})
    if any(fnmatch(file.name, pattern) for file in sample.others for pattern in patterns):
        return [file.relative_to(sample.path).as_posix() for file in sample.files]
    return patterns
