"""Write one offline page with curves, tables and samples."""

import json
from pathlib import Path

from chatmill.conversation import Message, Part
from chatmill.data_card import token_counter
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage
from chatmill.report import answers, sections
from chatmill.report.answers import data
from chatmill.report.inputs import cards_of, read_curve, read_metrics, read_origin, read_samples, this_run
from chatmill.report.markup import document, tag
from chatmill.report.speed import speed
from chatmill.report.summary import key_figures, overview, plot_tables, speeds_of
from chatmill.report.token_view import conversation_tokens, loss_mask_view, text_tokens, token_list
from chatmill.tokenizer.formats.tokenizer_loading import load

MASK_EXAMPLE = [  # the conversation whose loss mask is shown
    Message.from_text("user", "What is 12 times 3?"),
    Message("assistant", (Part("call", "12*3"), Part("output", "36"), Part("text", "12 times 3 is 36."))),
]


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
    speeds: Output,
    *,
    sample: str,
    train_model: Section,
) -> None:
    """Write the page, which shows the tokens of the text `sample`, the tables of plots, and the key figures."""
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
    figures, times = key_figures(mixed, steps, measured, timed, soft), speeds_of(timed)
    page = document(
        f"chatmill report: {run.name}" if run.name else "chatmill report",
        tag("p", origin, tag("code", chat_tokenizer.fingerprint[:12]), class_="note"),
        sections.checks(measured),
        overview(measured, timed, figures | times, run),
        this_run(run, measured, timed),
        answers.chats(chats, measured),
        answers.skills(measured),
        sections.compression(measured),
        sections.since_initial(measured),
        sections.training(steps),
        speed(measured, timed),
        sections.tokenizer(measured, timed, sample_tokens, mask),
        sections.soft_tokenizer(soft),
        data(mixed, cards),
    )
    report.mkdir()
    for name, text in {"index.html": page, **plot_tables(steps, measured, timed)}.items():
        (report / name).write_text(text, encoding="utf-8")
    for file, content in (summary, figures), (speeds, times):
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
