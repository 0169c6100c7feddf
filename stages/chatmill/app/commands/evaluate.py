"""Measure the bits per byte of models on conversations or texts."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from chatmill.app import arguments
from chatmill.app.arguments import check_positive
from chatmill.app.measurement import Measurement, ScoredDocument, difference, interval, measure, read_documents
from chatmill.app.named_models import load_named, named_errors
from chatmill.app.terminal.terminal_chat import device_name
from chatmill.app.terminal.text import StyledLine, aligned, notify, plural, print_lines
from chatmill.datasets.formats.registry import FORMAT_NAMES
from chatmill.inference.model_loading import LoadedModel
from chatmill.report.markup import bits_range, number

MAX_LISTED = 3  # places of documents that are left out
EPILOG = """examples:
  chatmill evaluate data/model --data data/chat/test.jsonl
  chatmill evaluate data/model ~/models/qwen --data data/chat/test.jsonl --data letter.txt
  chatmill evaluate data/model --data data/raw/dialogues.txt --format dailydialog --limit 100
  chatmill evaluate HEAD my-experiment --data data/chat/test.jsonl

Control tokens are not scored. A document longer than the context is scored in
windows that overlap by half; with --stride N they move by N tokens, and do not
overlap if N is the context, as in lm-evaluation-harness. Models with different
templates are scored on different text around the messages: compare their rows
"the assistant's". Intervals are of 95 %, by a bootstrap over the documents;
those of differences are paired.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL", help="model folder or file, or DVC experiment, branch, commit")
    arguments.add_repeated(add, "--data", type=Path, metavar="FILE", help="conversations or text")
    formats = f"format of the data, as in prepare: {', '.join(FORMAT_NAMES)}"
    default = "conversations in .json and .jsonl files; any other file is one text"
    add("--format", choices=FORMAT_NAMES, metavar="NAME", help=f"{formats} (default: {default})")
    add("--limit", type=int, metavar="N", help="read only the first N documents of each file")
    add("--context", type=int, metavar="N", help="tokens of a window (default: the model's context, if memory allows)")
    add("--stride", type=int, metavar="N", help="tokens by which windows move (default: half the context)")
    arguments.add_loading(add)
    add("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace) -> None:
    for name in ("limit", "context", "stride", "threads"):
        if (value := getattr(options, name)) is not None:
            check_positive(f"--{name}", value)
    if len(options.models) > len(ascii_uppercase):
        raise ValueError(f"expected 1 to {len(ascii_uppercase)} models, got {len(options.models)}")
    if not options.data:
        raise ValueError("nothing to measure: expected --data FILE")
    documents = [
        one for file in dict.fromkeys(options.data) for one in read_documents(file, options.format, options.limit)
    ]
    results = [load_and_measure(path, documents, options) for path in options.models]
    if options.json:
        print(json.dumps([as_json(path, *one) for path, one in zip(options.models, results, strict=True)], indent=1))
        return
    measurements = [one for _, one in results]
    print_lines(result_lines(options.models, measurements), sys.stdout)
    if len({one.bytes for one in measurements}) > 1:
        notify('the models have different templates, and thus different text: compare the rows "the assistant\'s"')


def load_and_measure(
    path: Path, documents: Sequence[ScoredDocument], options: argparse.Namespace
) -> tuple[LoadedModel, Measurement]:
    """Load a model and measure it; how that was done is printed on stderr."""
    loaded = load_named(path, **arguments.loading(options))
    with named_errors(path):
        found = measure(loaded, documents, options.context, options.stride)
    engine = loaded.engine
    notify(
        f"{path}: {engine.name} on {device_name(engine)}, template {loaded.template.name}, context {found.context:,}: "
        f"{plural(found.tokens, 'token')} of text, {found.tokens_per_second:,.0f} tokens/s"
    )
    if found.left_out:
        places = ", ".join(found.left_out[:MAX_LISTED]) + (" …" if len(found.left_out) > MAX_LISTED else "")
        left_out = plural(len(found.left_out), "document")
        notify(f"{path}: {left_out} left out, with characters that its tokenizer cannot say: {places}")
    return loaded, found


def result_lines(paths: Sequence[Path], measurements: Sequence[Measurement]) -> Iterator[StyledLine]:
    """A row for each measure and a column for each model, after a list of the models' letters."""
    head = ("", str(paths[0]))
    if len(paths) > 1:
        head = ("", *ascii_uppercase[: len(paths)])
        yield from ([("", f"{letter} {path}")] for letter, path in zip(head[1:], paths, strict=True))
        yield []

    def bits_row(name: str, file: str | None, which: str) -> tuple[str, ...]:
        bits = [one.by_file[file] if file else one.bits_per_byte for one in measurements]
        return (name, *(number(getattr(one, which), 4) for one in bits))

    rows: list[tuple[str, ...]] = []
    for name, which in (("all text", "all"), ("the assistant's", "assistant")):
        rows.append(bits_row(name, None, which))
        limits = [interval(one, which) for one in measurements]
        apart = [difference(one, measurements[0], which) for one in measurements[1:]]
        rows += [("  95 % interval", *(bits_range(one, 4) for one in limits))] if any(limits) else []
        rows += [("  more than A", "", *(bits_range(one, 4) for one in apart))] if any(apart) else []
    for file in measurements[0].by_file if len(measurements[0].by_file) > 1 else ():
        rows += [bits_row(file, file, "all"), bits_row("  the assistant's", file, "assistant")]
    yield from aligned("Bits per byte", head, rows)
    yield []
    tokens = ("tokens per byte", *(number(one.tokens / one.bytes, 3) for one in measurements))
    yield from aligned("Text", head, [("bytes", *(f"{one.bytes:,}" for one in measurements)), tokens])


def as_json(path: Path, loaded: LoadedModel, measurement: Measurement) -> dict[str, Any]:
    by_file = {file: bits._asdict() for file, bits in measurement.by_file.items()}
    return {
        "model": str(path),
        "engine": loaded.engine.name,
        "device": loaded.engine.device,
        "template": loaded.template.name,
        "tokenizer": loaded.tokenizer.fingerprint,
        "context": measurement.context,
        "stride": measurement.stride,
        "bits_per_byte": measurement.bits_per_byte._asdict() | {"by_file": by_file},
        "intervals": {"bits_per_byte": {which: interval(measurement, which) for which in measurement.sums}},
        "bytes": measurement.bytes,
        "tokens": measurement.tokens,
        "tokens_per_byte": measurement.tokens / measurement.bytes if measurement.bytes else None,
        "tokens_per_second": measurement.tokens_per_second,
    }
