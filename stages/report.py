"""Write one offline page with curves, tables and samples."""

import json
from pathlib import Path

from chatmill.conversation import Message, Part
from chatmill.data_card import token_counter
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage
from chatmill.report.chart import training_charts
from chatmill.report.inputs import cards_of, read_curve, read_metrics, read_origin, read_samples
from chatmill.report.page import page
from chatmill.report.summary import first_screen, key_figures, plot_tables, speeds_of
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
    """Write the page with its plots, the key figures, and the speeds; it shows the tokens of the text `sample`."""
    mixed, soft = read_metrics(mix), read_metrics(soft_tokenizer)
    measured, timed, steps = read_metrics(evaluation), read_metrics(benchmark), read_curve(curve)
    chat_tokenizer, origin = load(tokenizer), read_origin(Path())
    template = measured.get("template", "chatml")
    figures, times = key_figures(mixed, steps, measured, timed, soft), speeds_of(timed)
    html = page(
        origin,
        first_screen(measured, timed, figures | times, origin.former),
        measured,
        timed,
        soft,
        mix=mixed,
        samples=read_samples(samples),
        cards=cards_of(train, token_counter(chat_tokenizer, template), train_model.get("context")),
        training=training_charts(steps),
        template=template,
        vocabulary=chat_tokenizer.vocabulary,
        sample_tokens=token_list(text_tokens(sample, chat_tokenizer)),
        loss_mask=loss_mask_view(conversation_tokens(MASK_EXAMPLE, chat_tokenizer, template)),
    )
    report.mkdir()
    for name, text in {"index.html": html, **plot_tables(steps, measured, timed)}.items():
        (report / name).write_text(text, encoding="utf-8")
    for file, content in (summary, figures), (speeds, times):
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
