"""Write one offline page with curves, tables and samples."""

import csv
import json
import math
from pathlib import Path

from chatmill.conversation import Message, Part, Record
from chatmill.data_card import Card, Count, make_card, sample_records, token_counter
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage
from chatmill.report import answers, sections
from chatmill.report.data import data
from chatmill.report.markup import document, tag
from chatmill.report.metrics import Metrics
from chatmill.report.origin import read_origin, this_run
from chatmill.report.plot_tables import table_of_latency, table_of_sources, table_of_validation
from chatmill.report.speed import speed
from chatmill.report.summary import key_figures
from chatmill.report.token_view import conversation_tokens, loss_mask_view, text_tokens, token_list
from chatmill.tokenizer.formats.tokenizer_loading import load

SAMPLED = 2000  # conversations of the training set whose text is looked at
PAGE_COMMAND = "chatmill page --model data/export/onnx -o chat.html"
MASK_EXAMPLE = [  # the conversation whose loss mask is shown
    Message.from_text("user", "What is 12 times 3?"),
    Message("assistant", (Part("call", "12*3"), Part("output", "36"), Part("text", "12 times 3 is 36."))),
]


def read_text(file: Path) -> str:
    """The text of a file. Raises ValueError where it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error


def read_metrics(file: Path) -> Metrics:
    """The metrics in a file. Raises ValueError where it is not an object of JSON."""
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected metrics as an object of JSON, got a {type(content).__name__}")
    return content


def read_samples(file: Path) -> list[Metrics]:
    """The sample answers in a file, one per line. Raises ValueError with file and line."""
    result = []
    for number, line in enumerate(read_text(file).split("\n")[:-1], start=1):
        try:
            sample = json.loads(line)
            chunks = {"chunk_bytes": [int(size) for size in sample["chunk_bytes"]]} if "chunk_bytes" in sample else {}
            of_data = {key: sample[key] for key in ("true", "messages_before") if key in sample}
            result.append({key: sample[key] for key in ("prompt", "answer", "stopped")} | of_data | chunks)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{number}: expected a sample with prompt, answer and stopped: {error}") from error
    return result


def read_curve(file: Path) -> sections.Curve:
    """The columns of a tab-separated table, by step; cells without a finite number are left out."""
    curve: sections.Curve = {}
    for number, row in enumerate(csv.DictReader(read_text(file).splitlines(), delimiter="\t"), start=2):
        try:
            values = {name: float(cell) for name, cell in row.items() if cell}
            step = values.pop("step")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{number}: expected numbers and a step: {error}") from error
        for name, value in values.items():
            if math.isfinite(value):
                curve.setdefault(name, []).append((step, value))
    return curve


def cards_of(train: Path, count_tokens: Count, context: int | None) -> dict[str, Card]:
    """The data card of each source in a sample of the training set."""
    by_source: dict[str, list[Record]] = {}
    for record in sample_records(train, SAMPLED):
        by_source.setdefault(record.source, []).append(record)
    return {
        source: make_card(records, count_tokens=count_tokens, context=context)
        for source, records in sorted(by_source.items())
    }


@stage
def main(
    mix: Path,
    train: Path,
    curve: Path,
    evaluation: Path,
    benchmark: Path,
    soft_tokenizer: Path,
    samples: Path,
    tokenizer: Path,
    report: Output,
    summary: Output,
    *,
    sample: str,
    train_model: Section,
) -> None:
    """Read the metrics of the stages, the tokenizer, and some conversations; write the page, plots and key figures.

    The page shows the tokens of the text `sample`.
    """
    mixed, soft = read_metrics(mix), read_metrics(soft_tokenizer)
    measured, timed, steps = read_metrics(evaluation), read_metrics(benchmark), read_curve(curve)
    chat_tokenizer = load(tokenizer)
    template = measured.get("template", "chatml")
    kind, size = chat_tokenizer.vocabulary.type, chat_tokenizer.vocab_size
    origin = f"Template {template}; tokenizer of type {kind} with {size:,} tokens, fingerprint "
    sample_tokens = token_list(text_tokens(sample, chat_tokenizer))
    mask = loss_mask_view(conversation_tokens(MASK_EXAMPLE, chat_tokenizer, template))
    cards = cards_of(train, token_counter(chat_tokenizer, template), train_model.get("context"))
    chats, run = read_samples(samples), read_origin(Path())
    page = document(
        f"chatmill report: {run.name}" if run.name else "chatmill report",
        tag("p", origin, tag("code", chat_tokenizer.fingerprint[:12]), class_="note"),
        tag("p", "To chat with the model in a browser, without a server: ", tag("code", PAGE_COMMAND), class_="note"),
        sections.summary(measured, timed),
        this_run(run, measured, timed),
        sections.checks(measured),
        answers.chats(chats),
        answers.skills(measured),
        answers.persona(measured),
        answers.talk(measured),
        answers.lengths(measured),
        sections.compression(measured),
        sections.training(steps),
        speed(measured, timed),
        sections.tokenizer(measured, timed, sample_tokens, mask),
        sections.chunks(measured, chats),
        sections.soft_tokenizer(soft),
        data(mixed, cards),
    )
    report.mkdir()
    (report / "index.html").write_text(page, encoding="utf-8")
    (report / "validation.tsv").write_text(table_of_validation(steps), encoding="utf-8")
    (report / "bits_per_byte.tsv").write_text(table_of_sources(measured), encoding="utf-8")
    (report / "latency.tsv").write_text(table_of_latency(timed), encoding="utf-8")
    figures = key_figures(mixed, steps, measured, timed, soft)
    summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
