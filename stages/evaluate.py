"""Measure bits per byte and chat skills, with every engine."""

import json
from pathlib import Path
from typing import get_args

from chatmill.conversation import TemplateName
from chatmill.evaluation import sections
from chatmill.evaluation.answering import answer_sample, measure_sense, skills_sections
from chatmill.evaluation.bits_per_byte import default_stride
from chatmill.evaluation.corpus import Corpus
from chatmill.evaluation.intervals import share
from chatmill.evaluation.ngram import read_counted_text, score_with_ngrams
from chatmill.evaluation.verbatim import measure_copying
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.signatures import InitialModel, Output
from chatmill.pipeline.stage import stage
from chatmill.record_files import read_records


@stage
def main(
    test: Path,
    train: Path,
    prompts: Path,
    general: Path,
    tokens: Path,
    model: Path,
    onnx: Path,
    external: Path,
    models: Path,
    samples: Output,
    metrics: Output,
    *,
    initial: InitialModel,
    parameters: sections.EvaluateParameters,
) -> None:
    """Measure the model, and what it learnt and forgot (on the text `general`) since the initial one in `models`."""
    # What is asked: a sample of the test set, and the model with which chats are held.
    for file in parameters.compare_tokenizers:
        check_external(file, external, "evaluate.compare_tokenizers")
    described, trained_only = sections.describe_model(model)
    parameters, sample = sections.sample_within_budget(test, parameters, described["parameters"])
    loaded = sections.load_chat(model, onnx, parameters.threads)
    session = ChatSession(*loaded)
    sample = sections.that_fits(session, sample, parameters.max_tokens)
    tokenizer, template = loaded.tokenizer, CHATMILL_TEMPLATES[loaded.template.name].name

    # Bits per byte of the test set, under each engine and counted n-grams.
    test_set = sample.test
    corpora = {name: Corpus.from_records(test_set.records, tokenizer, name) for name in get_args(TemplateName)}
    corpus = corpora[template]
    counted = read_counted_text(tokens, tokenizer, template, model)
    ngram = score_with_ngrams(counted, tokenizer, corpus.ids, corpus.offsets)
    engines, nats = sections.compare_engines(
        model, onnx, corpus, template, sample.questions, parameters, trained_only=trained_only
    )

    # Answers to the skills' questions, to talk of the test set, and, only if it asks a persona, to free prompts.
    answers = answer_sample(session, sample, prompts, loaded.tools, parameters.max_tokens)
    said, true = [one.text for one in answers.free + answers.talk], [one[-1].text for one in sample.talk]
    content = {
        "model": described,
        "template": template,
        "stride": parameters.stride or default_stride(loaded.engine.context),
        "bits_per_byte": sections.text_section(corpus, test_set.sources, nats, ngram, trained_only=trained_only),
        "stop_nats_per_turn": corpus.stop_nats_per_turn(nats),
        **skills_sections(sample.questions, answers.skills),
        "stops_rate": share([one.stopped for one in answers.skills + (answers.free or answers.talk)]),
        "verbatim": measure_copying(said, true, train),
        **measure_sense(session, sample.talk_questions, read_records(train), parameters.max_tokens),
        "engines": engines,
        **sections.initial_section(initial, loaded, sample, general, parameters),
        "tokenizer": sections.compression_section(test_set, corpora, template, parameters.compare_tokenizers),
    }
    samples.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in answers.shown), encoding="utf-8")
    sections.write_metrics(metrics, content)
