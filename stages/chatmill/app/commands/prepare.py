"""Looks at a dataset that nobody has described, and proposes its section for params.yaml."""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chatmill.app.look.guess import NoGuessError, by_path
from chatmill.app.look.proposal import MIN_KEPT, Trial, propose, section_text
from chatmill.app.look.rows import NAMED
from chatmill.app.look.sample import PARQUET, YAML, Sample, take_sample
from chatmill.app.terminal.text import format_size, printable
from chatmill.data_card import Card, Count, Spread, make_card, token_counter
from chatmill.datasets.formats.chat_logs import LOGS, speakers
from chatmill.datasets.records import WANTED
from chatmill.personal_data import PERSONAL
from chatmill.pipeline.params_file import PARAMS_FILE, read_params

# Shows in words what was found in a sample, what its section gives, and what is to check.

_MAX_COLUMNS = 16
_MAX_REASONS = 3  # of which the first case is shown
_MAX_FILES = 5  # that are named
_MAX_SHOWN = 600  # characters of a conversation


def sample_lines(sample: Sample) -> Iterator[str]:
    count = f"{len(sample.files):,} files, " if sample.files != [sample.path] else ""
    unit = "lines" if sample.is_text else "entries"
    about = "" if sample.is_complete or sample.kind == PARQUET else "about "
    entries = f", {about}{sample.entries:,} {unit}" if sample.entries else ""
    yield f"{sample.path}: {count}{' and '.join(sorted(sample.words))}, {format_size(sample.bytes)}{entries}"
    yield from left_out_lines(sample)
    if not sample.is_complete:
        several = f" of {len(sample.read)} files" if len(sample.files) > 1 else ""
        yield f"all that follows is of a sample from the beginning{several}"
    if not sample.is_text and sample.kind != YAML:
        yield from columns_lines(sample.rows)


def left_out_lines(sample: Sample) -> Iterator[str]:
    """Files of the folder that are left out: those that cannot be read with the reason, others by their names."""
    for error in list(sample.errors.values())[:_MAX_FILES]:
        yield f"left out: {error}"
    if len(sample.errors) > _MAX_FILES:
        yield f"left out: {len(sample.errors) - _MAX_FILES:,} others that cannot be read"
    if others := [file for file in sample.others if file not in sample.errors]:
        names = ", ".join(file.name for file in others[:_MAX_FILES])
        yield f"left out: {names}{f' and {len(others) - _MAX_FILES:,} others' if len(others) > _MAX_FILES else ''}"


def columns_lines(rows: list[Any]) -> Iterator[str]:
    values = by_path(rows)
    if not values:
        return
    width = min(24, max(map(len, values)))
    yield ""
    yield "columns"
    for path, found in list(values.items())[:_MAX_COLUMNS]:
        share = "" if len(found) == len(rows) else f" (in {len(found) / len(rows):.0%})"
        yield shorten(f"  {path:<{width}}{share}  {described(found)}", shutil.get_terminal_size((100, 24)).columns)
    if len(values) > _MAX_COLUMNS:
        yield f"  and {len(values) - _MAX_COLUMNS:,} others"


def described(found: list[Any]) -> str:
    """An example of a column: the first that is not empty."""
    value = next((value for value in found if value not in ("", [], {})), found[0])
    if isinstance(value, list):
        return f"{len(value)} × {value[0] if value else ''}"
    return repr(value) if isinstance(value, str) else str(value)


def trial_lines(trial: Trial) -> Iterator[str]:
    if not trial.entries:
        return
    yield ""
    documents = trial.guess.format == "documents"
    what = "documents" if documents else "conversations"
    yield f"kept: {len(trial.records):,} of {trial.entries:,} {what} ({trial.share:.1%})"
    if rejected := {name: count for name, count in trial.reasons.items() if name not in WANTED}:
        yield f"rejected: {counts_text(rejected)}"
    if left_out := {name: count for name, count in trial.reasons.items() if name in WANTED}:
        yield f"not counted: {counts_text(left_out)}"
    counts = trial.tally.content()
    messages = counts["messages"]
    parts = {name: count for name, count in messages["rejected"].items() if name not in trial.reasons and count}
    if parts:
        yield f"left out: of {messages['read']:,} messages {counts_text(parts)}"
    if counts["repaired"]:
        yield f"changed by rule: {counts_text(counts['repaired'])}"
    for reject in sorted(trial.first.values(), key=lambda reject: reject.part)[:_MAX_REASONS]:  # entries before parts
        yield shorten(f"  {reject.reason}: {reject.place}: {reject.detail}", 200)


def card_lines(card: Card, names: Counter[str]) -> Iterator[str]:
    if not card.conversations:
        return
    yield ""
    if names:
        yield f"names of speakers: {counts_text(dict(names.most_common(8)))}"
    what = "document" if "document" in card.messages else "conversation"
    if what == "conversation":
        yield f"messages: {counts_text(card.messages)}"
        yield f"messages per conversation: {spread_text(card.turns)}"
    yield f"{card.unit} per {what}: {spread_text(card.lengths)}"
    if card.cut:
        fate = "cut, only the end remains" if what == "conversation" else "trained on in parts"
        yield f"longer than the context: {card.cut:,}, {fate}"
    yield f"trained: {card.trained_bytes / max(1, card.bytes):.0%} of {format_size(card.bytes)} of text"
    if card.duplicates:
        yield f"duplicates of an earlier {what}: {card.duplicates:,}"
    for text, count in card.frequent_answers.items():
        yield shorten(f"the same answer {count:,} times: {text!r}", 120)
    if card.odd:
        yield "odd things in messages:"
    for name, odd in card.odd.items():
        yield shorten(f"  {name} in {odd['messages']:,}, as {odd['examples'][0]!r}", 120)


def conversation_lines(texts: Sequence[str]) -> Iterator[str]:
    """A few conversations as the model will read them; of long ones the beginning and the end."""
    for number, text in enumerate(texts, start=1):
        yield ""
        yield f"─── as the model reads it: {number} of {len(texts)} " + "─" * 30
        if len(text) > _MAX_SHOWN:
            text = f"{text[: _MAX_SHOWN * 2 // 3]} […] {text[-_MAX_SHOWN // 3 :]}"
        yield text.rstrip("\n")


def doubt_lines(trial: Trial) -> Iterator[str]:
    if trial.guess.doubts:
        yield ""
        yield "check:"
        yield from (f"- {doubt}" for doubt in trial.guess.doubts)


def counts_text(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def spread_text(spread: Spread) -> str:
    return f"{spread.p50:,} (median), {spread.p95:,} (95 %), {spread.max:,} (maximum)"


def shorten(line: str, width: int) -> str:
    line = printable(line.replace("\n", " "))
    return line if len(line) <= width else f"{line[: width - 1]}…"


# Look at a dataset that nobody has described, and propose its section for params.yaml.

PRIVATE = (
    "personal data: a model repeats it; redact: true replaces what is recognised by [email], [phone] and the like, in "
    "logs of chats the names of speakers by [name]; `dvc add FILE` keeps the file itself out of git"
)

EPILOG = """The section is printed alone on stdout, and all else on stderr, so that
`chatmill prepare --look FILE > section.yaml` writes it. The exit code is 1 where
no section can be proposed.
"""
DEFAULT_TOKENIZER = Path("data/tokenizer")  # written by the pipeline


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--look", type=Path, required=True, metavar="FILE", help="a file, compressed or not, or a folder of files")
    add("--tokenizer", type=Path, metavar="PATH", help=f"count its tokens (default: {DEFAULT_TOKENIZER}, if it exists)")


def run(options: argparse.Namespace) -> int:
    """Show what is there on stderr, and print its section on stdout; 1 if there is none to propose."""
    path: Path = options.look
    sample = take_sample(path)
    try:
        trial = propose(sample)
    except NoGuessError as error:
        show(sample_lines(sample))
        show([""])
        raise ValueError(f"{path}: no section can be proposed: {error}") from error
    show(sample_lines(sample))
    count_tokens = counter_of(options.tokenizer)
    section = read_params().get("train_model") if count_tokens and PARAMS_FILE.exists() else {}
    card = make_card(trial.records, count_tokens=count_tokens, context=(section or {}).get("context"))
    show(trial_lines(trial))
    show(card_lines(card, speaker_names(sample, trial)))
    show(conversation_lines(examples(trial)))
    if trial.guess.format in LOGS or bool({*PERSONAL} & {*card.odd}):
        trial.guess.doubts.append(PRIVATE)
    show(doubt_lines(trial))
    show([""])
    sys.stderr.flush()
    sys.stdout.write(section_text(sample, trial))
    return 0 if not trial.entries or trial.share >= MIN_KEPT else 1


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line), file=sys.stderr)


def counter_of(path: Path | None) -> Count | None:
    """The function that counts the tokens of records; None without a tokenizer."""
    if path is None and not DEFAULT_TOKENIZER.exists():
        return None
    from chatmill.app.commands.show import read_tokenizer  # imports what looking at a file does not need

    return token_counter(read_tokenizer(path or DEFAULT_TOKENIZER))


def speaker_names(sample: Sample, trial: Trial) -> Counter[str]:
    """How the speakers are called, where a log or a column of the rows says it."""
    if trial.guess.format in LOGS:
        return speakers(sample.files, trial.guess.format)
    columns = trial.guess.columns or NAMED.get(trial.guess.format, {})
    path, role = columns.get("messages", ""), columns.get("role", "role")
    lists = [value for value in by_path(sample.rows).get(path, []) if isinstance(value, list)]
    messages = by_path(message for value in lists for message in value)
    return Counter(str(name) for name in messages.get(role, []))


def examples(trial: Trial) -> list[str]:
    """The first, the middle and the last of the sampled conversations, as they are rendered."""
    texts = [record.text for record in trial.records]
    return [texts[i] for i in sorted({0, len(texts) // 2, len(texts) - 1})] if texts else []
