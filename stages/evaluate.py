"""Measure bits per byte and chat skills, with every engine.

The model answers the last question of each conversation, greedily and with the calculator. `skills` are measured with
the main engine, which chats also use; `engines` compares all of them on the first `engine_prompts` questions of each
skill. `sense` and `recall` are shares of replies to a persona's user that make sense (chatmill.evaluation.sense).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from pydantic import PositiveInt

from chatmill.checkpoints.weights import read_weights, weight_files
from chatmill.conversation import Conversation, TemplateName, read_records, record_segments
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.engines.torch.pytorch_engine import PyTorchEngine
from chatmill.evaluation.answer_lengths import measure_lengths
from chatmill.evaluation.answering import accuracies, answer_prompts, answer_questions, answer_talk, wrong_answers
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte, default_stride, rounded
from chatmill.evaluation.calibration import calibration
from chatmill.evaluation.corpus import Corpus, bytes_per_token
from chatmill.evaluation.held_out_set import Question, TestSet, sample_test_set
from chatmill.evaluation.hits import hits_at_1, make_rankings
from chatmill.evaluation.intervals import Estimate, bits_interval, field_of, share, values_of
from chatmill.evaluation.ngram import NgramScore, read_counted_text, score_with_ngrams
from chatmill.evaluation.scoring import make_prefix_scorer, make_scorer
from chatmill.evaluation.sense import measure_sense
from chatmill.evaluation.verbatim import measure_copying
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.model_loading import engine_names, load_engine, load_model
from chatmill.model.chat_model import ChatModel
from chatmill.model.checkpoint_loading import load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.progress import progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.soft_tokenizer.chunk_boundaries import chunk_contents, chunk_starts, chunk_statistics
from chatmill.talk.persona import read_persona
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer

MAX_RANKINGS = 100  # conversations without `skill` for hits@1
MAX_SAMPLES = 20  # of the test set, for the report
MAX_TALK_ANSWERS = 200  # of them that are answered, to see what is copied
MAX_TALK = 1000  # of them from which other replies are taken
SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
}
TRAINING = ("steps", "epochs", "precision", "compile", "threads", "device")


def measure_text(
    corpus: Corpus, sources: list[str], nats: np.ndarray, ngram: NgramScore, *, trained_only: bool
) -> dict[str, Any]:
    """The section bits_per_byte of the metrics; of all text, or only the trained one if prompts have no weight.

    Trained are the assistant's text and documents, which have no assistant.
    """
    of_sources = np.array(sources)

    def bits(nats: np.ndarray, *, trained: bool, documents: np.ndarray | None = None) -> Estimate:
        sums = corpus.sums(nats, trained_only=trained, documents=documents)
        value = bits_per_byte(float(sums[0].sum()), int(sums[1].sum()))
        return Estimate(value, bits_interval(*sums), int(np.count_nonzero(sums[1])))

    def by_source(nats: np.ndarray) -> dict[str, Estimate]:
        return {name: bits(nats, trained=trained_only, documents=of_sources == name) for name in sorted(set(sources))}

    result: dict[str, Any] = {
        "all": None if trained_only else bits(nats, trained=False),
        "assistant": bits(nats, trained=True, documents=corpus.has_roles),
        "by_source": by_source(nats),
        "baselines": baselines(corpus.text()) | {"ngram": bits(ngram.nats, trained=False)},
        "ngram_assistant": bits(ngram.nats, trained=True, documents=corpus.has_roles),
        "ngram_by_source": by_source(ngram.nats),
        "ngram_order": ngram.order,
        "ngram_train_tokens": ngram.train_tokens,
    }
    if trained_only:
        result["note"] = (
            "prompt_loss_weight is 0: the model was trained on the assistant's text alone, "
            "so sources are measured on it"
        )
    return result


def measure_compression(
    test: TestSet,
    tokenizer: ChatTokenizer,
    corpora: dict[TemplateName, Corpus],
    template: TemplateName,
    others: Iterable[Path],
) -> dict[str, Any]:
    """The section tokenizer of the metrics."""
    num_messages = sum(map(len, test.conversations))
    documents = [record_segments(record, template) for record in test.records]

    def compression(tokenizer: ChatTokenizer) -> float | None:
        return bytes_per_token(documents, tokenizer)

    def tokens_per_message(corpus: Corpus) -> float | None:
        return float(np.diff(corpus.offsets)[corpus.has_roles].sum() / num_messages) if num_messages else None

    return {
        "bytes_per_token": compression(tokenizer),
        "tokens_per_message": {name: tokens_per_message(corpus) for name, corpus in corpora.items()},
        "fingerprint": tokenizer.fingerprint,
        "compared": {path.stem: compression(load_tokenizer(path)) for path in others},
    }


def open_engines(model: Path, onnx: Path, threads: int) -> Iterator[tuple[Engine, Path]]:
    """The engines, opened one at a time, with the files of their weights; PyTorch comes first."""
    network, _ = load_chat_model(model, torch.device("cpu"))
    yield PyTorchEngine(network, device="cpu", threads=threads), model / "model.safetensors"
    for name in engine_names(onnx):
        yield load_engine(onnx, name, threads=threads), onnx / ONNX_FILES[name]


def measure_engines(
    engines: Iterable[tuple[Engine, Path]],
    corpus: Corpus,
    questions: list[Question],
    template: TemplateName,
    *,
    max_tokens: int,
    stride: int | None,
    trained_only: bool,
) -> tuple[dict[str, Any], np.ndarray]:
    """The section engines of the metrics, and the nats of each token under the first engine."""
    result: dict[str, Any] = {}
    reference: np.ndarray | None = None
    for engine, weights in engines:
        nats = corpus.nats(engine.context, make_scorer(engine), stride)
        reference = nats if reference is None else reference
        session = ChatSession(engine, corpus.tokenizer, CHATMILL_TEMPLATES[template])
        correct = [answer.correct for answer in answer_questions(session, questions, max_tokens)]
        result[engine.name] = {
            "bits_per_byte": corpus.bits_per_byte(nats, trained_only=trained_only),
            "skills_macro": accuracies(questions, correct).get("macro"),
            "size_mb": weights.stat().st_size / 1e6,
        }
    assert reference is not None, "PyTorch is always among the engines"
    return result, reference


def describe_chunks(model: ChatModel, corpus: Corpus, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The section chunks of the metrics, for a model that works on chunks; adds `chunk_bytes` to each sample."""
    tokenizer = corpus.tokenizer
    documents = corpus.documents()
    starts = [chunk_starts(model, ids.tolist()) for ids in progress(documents, "find chunks", unit="conversation")]
    contents = [[tokenizer.token_bytes[token] for token in ids] for ids in documents]
    for sample in samples:
        ids = tokenizer.encode(f"{sample['prompt']}\n{sample['answer']}")
        parts = chunk_contents(chunk_starts(model, ids), [tokenizer.token_bytes[token] for token in ids])
        sample["chunk_bytes"] = [len(part) for part in parts]
    return chunk_statistics(starts, contents)


def ask_persona(
    session: ChatSession, persona: Path, questions: dict[str, list[Question]], train: Path, max_tokens: int
) -> dict[str, Any]:
    """The sections sense and recall of the metrics, without questions or a persona none."""
    if not questions or not persona.exists():
        return {}

    def reply(conversation: Conversation) -> str:
        return session.greedy_reply(conversation, max_tokens)[0].text

    return measure_sense(read_persona(persona), questions, read_records(train), reply)


def trained_on_assistant_only(model: Path) -> bool:
    """Whether only the assistant's text had a loss weight in training."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return bool(config["chatmill"].get("prompt_loss_weight") == 0)


def describe_model(model: Path) -> dict[str, Any]:
    """The section model of the metrics: its size, its shape, and how it was trained."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    shape = {name: config[key] for name, key in SHAPE.items()}
    training = {key: config["chatmill"][key] for key in TRAINING if key in config["chatmill"]}
    parameters = sum(weight.numel() for weight in read_weights(weight_files(model)).values())
    return {"parameters": parameters, **shape, **training}


@stage
def main(
    test: Path,
    train: Path,
    prompts: Path,
    persona: Path,
    tokens: Path,
    model: Path,
    onnx: Path,
    external: Path,
    samples: Output,
    metrics: Output,
    *,
    max_tokens: PositiveInt,
    threads: PositiveInt,
    conversations: PositiveInt | None,
    skill_prompts: PositiveInt,
    engine_prompts: PositiveInt,
    talk_prompts: PositiveInt,
    compare_tokenizers: list[Path],
    stride: PositiveInt | None,
) -> None:
    """Read test conversations, the model and its export; write sample answers, and the metrics.

    Samples are answers to some messages of the test set, and, where it has questions to `persona`, to `prompts`.
    Bits per byte are measured on `conversations` of the test set; answers are searched in those of `train`. `tokens` is
    the encoded training text, whose n-grams are a baseline. `skill_prompts` and `engine_prompts` limit the questions of
    each skill and phrasing, `talk_prompts` those of each kind to the persona. `compare_tokenizers` are files of other
    tokenizers in the folder `external`. Conversations longer than the context are scored in windows that move by
    `stride` tokens, by default half a context.
    """
    for file in compare_tokenizers:
        check_external(file, external, "evaluate.compare_tokenizers")
    sample = sample_test_set(test, conversations, skill_prompts, MAX_TALK, talk_prompts, persona.name)
    test_set, questions = sample.test, sample.questions
    loaded = load_model(onnx if engine_names(onnx) else model, device="cpu", threads=threads)
    tokenizer, template = loaded.tokenizer, CHATMILL_TEMPLATES[loaded.template.name].name
    if check_manifest(model) != tokenizer.fingerprint:
        raise ValueError(f"{model} and {onnx} have different tokenizers: recreate them with dvc repro export_onnx")
    corpora = {name: Corpus.from_records(test_set.records, tokenizer, name, threads) for name in get_args(TemplateName)}
    corpus, trained_only = corpora[template], trained_on_assistant_only(model)
    engine_questions = [
        question for question in questions if question.skill["phrasing"] == "known" and question.rank < engine_prompts
    ]

    counted = read_counted_text(tokens, tokenizer, template, model)
    ngram = score_with_ngrams(counted, tokenizer, corpus.ids, corpus.offsets)
    engines = open_engines(model, onnx, threads)
    compared, nats = measure_engines(
        engines, corpus, engine_questions, template, max_tokens=max_tokens, stride=stride, trained_only=trained_only
    )
    session = ChatSession(*loaded)
    answers = answer_questions(session, questions, max_tokens)
    correct, stopped = [answer.correct for answer in answers], [answer.stopped for answer in answers]
    talk = answer_talk(session, sample.talk[:MAX_TALK_ANSWERS], max_tokens)
    free = answer_prompts(session, prompts, loaded.tools, max_tokens) if sample.talk_questions else []
    stopped += [answer["stopped"] for answer in free] if free else [answer.stopped for answer in talk]
    sense = ask_persona(session, persona, sample.talk_questions, train, max_tokens)
    shown = free + [answer.sample() for answer in talk[:MAX_SAMPLES]]
    rankings = make_rankings(sample.talk, MAX_RANKINGS)
    segments, scorer = loaded.template.continue_final_message, make_prefix_scorer(loaded.engine)
    hits = hits_at_1(rankings, tokenizer, segments, loaded.engine.context, scorer)
    content = {
        "model": describe_model(model),
        "template": template,
        "stride": default_stride(loaded.engine.context) if stride is None else stride,
        "bits_per_byte": measure_text(corpus, test_set.sources, nats, ngram, trained_only=trained_only),
        "stop_nats_per_turn": corpus.stop_nats_per_turn(nats),
        "skills": accuracies(questions, correct) | {"held_back": accuracies(questions, correct, "held_back")},
        "wrong_answers": wrong_answers(questions, answers),
        "calibration": calibration(loaded.engine, loaded.engine.context, corpus),
        "stops_rate": share(stopped),
        "hits_at_1": share(hits),
        "verbatim": measure_copying(
            [answer["answer"] for answer in free] + [answer.reply for answer in talk],
            [answer.true for answer in talk],
            train,
        ),
        "answer_tokens": {
            "model": measure_lengths((answer.reply for answer in talk), tokenizer),
            "true": measure_lengths((answer.true for answer in talk), tokenizer),
        },
        **sense,
        "engines": compared,
        "tokenizer": measure_compression(test_set, tokenizer, corpora, template, compare_tokenizers),
    }
    if not questions:
        del content["skills"], content["wrong_answers"]
    if isinstance(loaded.engine, PyTorchEngine) and loaded.engine.model.config.chunking:
        content["chunks"] = describe_chunks(loaded.engine.model, corpus, shown)
    samples.write_text("".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in shown), encoding="utf-8")
    content = values_of(content) | {"intervals": field_of(content, "interval"), "counts": field_of(content, "n")}
    metrics.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")
