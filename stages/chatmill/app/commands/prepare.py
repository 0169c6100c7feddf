"""Looks at a dataset that nobody has described, and proposes its section for params.yaml."""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chatmill.app.look.guess import NoGuessError, by_path
from chatmill.app.look.proposal import Trial, propose, section_text
from chatmill.app.look.sample import YAML, Sample, take_sample
from chatmill.app.terminal.text import printable, shorten
from chatmill.data_card import Card, Count, Spread, make_card, token_counter
from chatmill.datasets.formats.chat_logs import LOGS
from chatmill.personal_data import PERSONAL
from chatmill.pipeline.outputs import format_size
from chatmill.pipeline.params_file import PARAMS_FILE, read_params

EPILOG = """The section is printed alone on stdout, and all else on stderr, so that
`chatmill prepare --look FILE > section.yaml` writes it. The exit code is 1 where
no section can be proposed.
"""
DEFAULT_TOKENIZER = Path("data/tokenizer")  # written by the pipeline
PRIVATE = (
    "personal data: a model repeats it; redact: true replaces what is recognised by [email], [phone] and the like, in "
    "logs of chats the names of speakers by [name]; `dvc add FILE` keeps the file itself out of git"
)
_MAX_REASONS = 3  # of which the first case is shown
_MAX_FILES = 5  # that are named
_MAX_SHOWN = 600  # characters of a conversation


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--look", type=Path, required=True, metavar="FILE", help="a file, compressed or not, or a folder of files")
    add("--tokenizer", type=Path, metavar="PATH", help=f"count its tokens (default: {DEFAULT_TOKENIZER}, if it exists)")


def run(options: argparse.Namespace) -> int:
    """Show what is there on stderr, and print its section on stdout; 1 if there is none to propose."""
    sample = take_sample(options.look)
    try:
        trial = propose(sample)
    except NoGuessError as error:
        show(sample_lines(sample))
        raise ValueError(f"{options.look}: no section can be proposed: {error}") from error
    count_tokens = counter_of(options.tokenizer)
    section = read_params().get("train_model") if count_tokens and PARAMS_FILE.exists() else {}
    card = make_card(trial.records, count_tokens=count_tokens, context=(section or {}).get("context"))
    if trial.guess.format in LOGS or {*PERSONAL} & {*card.odd}:
        trial.guess.doubts.append(PRIVATE)
    show(sample_lines(sample))
    if trial.entries:
        show(trial_lines(trial))
    if card.conversations:
        show(card_lines(card, trial.guess.names))
        show(conversation_lines(trial))
    if trial.guess.doubts:
        show(["check:", *(f"- {doubt}" for doubt in trial.guess.doubts), ""])
    sys.stderr.flush()
    sys.stdout.write(section_text(sample, trial))
    return 0 if not trial.entries or trial.is_useful else 1


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line), file=sys.stderr)


def counter_of(path: Path | None) -> Count | None:
    """The function that counts the tokens of records; None without a tokenizer."""
    if path is None and not DEFAULT_TOKENIZER.exists():
        return None
    from chatmill.app.commands.show import read_tokenizer  # imports what looking at a file does not need

    return token_counter(read_tokenizer(path or DEFAULT_TOKENIZER))


# What was found in a sample, in words; each part ends with an empty line.


def sample_lines(sample: Sample) -> Iterator[str]:
    count = f"{len(sample.files):,} files, " if sample.files != [sample.path] else ""
    more = "" if sample.is_complete else "over "
    entries = f", {more}{sample.entries:,} {'lines' if sample.is_text else 'entries'}" if sample.entries else ""
    size = format_size(sum(file.stat().st_size for file in sample.files))
    yield f"{sample.path}: {count}{' and '.join(sorted(sample.words))}, {size}{entries}"
    left_out = [*sample.errors.values(), *(file.name for file in sample.others if file not in sample.errors)]
    if left_out:
        yield f"left out: {'; '.join(left_out[:_MAX_FILES])}{' …' if len(left_out) > _MAX_FILES else ''}"
    if not sample.is_complete:
        yield f"all that follows is of a sample, from the beginning of {len(sample.rows):,} file(s)"
    yield ""
    if not sample.is_text and sample.kind != YAML:
        yield from columns_lines(sample.all_rows)


def columns_lines(rows: list[Any]) -> Iterator[str]:
    """The paths of the columns, each with a value that is not empty."""
    values = by_path(rows)
    size = min(24, max(map(len, values), default=0))
    yield "columns"
    for path, found in values.items():
        share = "" if len(found) == len(rows) else f" (in {len(found) / len(rows):.0%})"
        example = next((value for value in found if value not in ("", [], {})), found[0])
        yield shorten(f"  {path:<{size}}{share}  {example}", shutil.get_terminal_size((100, 24)).columns)
    yield ""


def trial_lines(trial: Trial) -> Iterator[str]:
    what = "documents" if trial.guess.format == "documents" else "conversations"
    yield f"kept: {len(trial.records):,} of {trial.entries:,} {what} ({trial.share:.1%})"
    counts = trial.tally.content()
    for words, found in (("rejected", counts["messages"]["rejected"]), ("changed by rule", counts["repaired"])):
        if any(found.values()):
            yield f"messages {words}: {counts_text({name: count for name, count in found.items() if count})}"
    for reject in sorted(trial.first.values(), key=lambda reject: reject.part)[:_MAX_REASONS]:  # entries before parts
        yield shorten(f"  {reject.reason}: {reject.place}: {reject.detail}", 200)
    yield ""


def card_lines(card: Card, names: Counter[str]) -> Iterator[str]:
    what = "document" if "document" in card.messages else "conversation"
    if names:
        yield f"names of speakers: {counts_text(dict(names.most_common(8)))}"
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
    for name, odd in card.odd.items():
        yield shorten(f"odd: {name} in {odd['messages']:,} messages, as {odd['examples'][0]!r}", 120)
    yield ""


def conversation_lines(trial: Trial) -> Iterator[str]:
    """The first conversation as the model will read it; of a long one beginning and end."""
    text = trial.records[0].text
    yield f"─── as the model reads it: 1 of {len(trial.records)} " + "─" * 30
    yield text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN * 2 // 3]} […] {text[-_MAX_SHOWN // 3 :]}"


def counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def spread_text(spread: Spread) -> str:
    return f"{spread.p50:,} (median), {spread.p95:,} (95 %), {spread.max:,} (maximum)"
