"""Look at a dataset that nobody has described, and propose its section for params.yaml."""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from chatmill.app.look.display import (
    card_lines,
    conversation_lines,
    doubt_lines,
    sample_lines,
    trial_lines,
)
from chatmill.app.look.guess import NoGuessError, by_path
from chatmill.app.look.proposal import propose, section_text
from chatmill.app.look.rows import NAMED
from chatmill.app.look.sample import Sample, take_sample
from chatmill.app.look.trial import MIN_KEPT, Trial
from chatmill.app.terminal.printable import printable
from chatmill.data_card.card import make_card
from chatmill.data_card.lengths import Count, token_counter

DEFAULT_TOKENIZER = Path("data/tokenizer")  # written by the pipeline


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill prepare`."""
    command.epilog = (
        "The section is printed alone on stdout, and all else on stderr, so that `chatmill prepare --look FILE > "
        "section.yaml` writes it. The exit code is 1 where no section can be proposed."
    )
    add = command.add_argument
    add("--look", type=Path, required=True, metavar="FILE", help="a file, compressed or not, or a folder of files")
    add("--tokenizer", type=Path, metavar="PATH", help=f"count its tokens (default: {DEFAULT_TOKENIZER}, if it exists)")


def run(options: argparse.Namespace) -> int:
    """Show what is there on stderr, and print its section on stdout; 1 if there is none to propose."""
    path: Path = options.look
    with tempfile.TemporaryDirectory(prefix="chatmill-") as scratch:
        sample = take_sample(path, Path(scratch))
        try:
            trial = propose(sample, Path(scratch))
        except NoGuessError as error:
            show(sample_lines(sample))
            show([""])
            raise ValueError(f"{path}: no section can be proposed: {error}") from error
        show(sample_lines(sample))
        count_tokens = counter_of(options.tokenizer)
        card = make_card(trial.records, count_tokens=count_tokens)
        show(trial_lines(trial))
        show(card_lines(card, speaker_names(sample, trial)))
        show(conversation_lines(examples(trial)))
        show(doubt_lines(trial))
    show([""])
    sys.stderr.flush()
    sys.stdout.write(section_text(sample, trial))
    return 0 if not trial.entries or trial.share >= MIN_KEPT else 1


def show(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def counter_of(path: Path | None) -> Count | None:
    """The function that counts the tokens of records; None without a tokenizer."""
    if path is None and not DEFAULT_TOKENIZER.exists():
        return None
    from chatmill.app.commands.show import read_tokenizer  # imports what looking at a file does not need

    return token_counter(read_tokenizer(path or DEFAULT_TOKENIZER))


def speaker_names(sample: Sample, trial: Trial) -> Counter[str]:
    """How the speakers are called in the rows, where a column says it."""
    columns = trial.guess.columns or NAMED.get(trial.guess.format, {})
    path, role = columns.get("messages", ""), columns.get("role", "role")
    names = Counter[str]()
    for row in sample.rows:
        for value in by_path([{".": row} if path == "." else row]).get(path, []):
            for message in value if isinstance(value, list) else []:
                names.update(str(name) for name in by_path([message]).get(role, []))
    return names


def examples(trial: Trial) -> list[str]:
    """The first, the middle and the last of the sampled conversations, as they are rendered."""
    texts = [record.text for record in trial.records]
    return [texts[i] for i in sorted({0, len(texts) // 2, len(texts) - 1})] if texts else []
