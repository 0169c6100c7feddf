"""The sections of evaluate.json, one function for each."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, PositiveInt

from chatmill.checkpoints.weights import read_weights, weight_files
from chatmill.conversation import Conversation, TemplateName, record_segments
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.evaluation.answering import accuracies, answer_questions, measure_sense
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte, rounded
from chatmill.evaluation.corpus import Corpus, bytes_per_token
from chatmill.evaluation.held_out_set import Question, TestSet
from chatmill.evaluation.intervals import Estimate, bits_interval, field_of, values_of
from chatmill.evaluation.ngram import NgramScore
from chatmill.evaluation.scoring import make_scorer
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.model_loading import LoadedModel, engine_names, load_engine, load_model
from chatmill.model.chat_model import load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.pipeline.progress import progress
from chatmill.record_files import read_records
from chatmill.soft_tokenizer.chunks import chunk_contents, chunk_starts, chunk_statistics
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer


class EvaluateParameters(BaseModel, extra="forbid"):
    """The section evaluate of params.yaml, which describes each."""

    max_tokens: PositiveInt
    conversations: PositiveInt | None
    skill_prompts: PositiveInt
    engine_prompts: PositiveInt
    talk_prompts: PositiveInt
    compare_tokenizers: list[Path]
    stride: PositiveInt | None
    threads: PositiveInt


SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
}
TRAINING = ("steps", "epochs", "precision", "compile", "threads", "device")


def load_chat(model: Path, onnx: Path, threads: int) -> LoadedModel:
    """The model with which chats are held: the export, if there is one. Raises ValueError if its tokenizer differs."""
    loaded = load_model(onnx if engine_names(onnx) else model, device="cpu", threads=threads)
    if check_manifest(model) != loaded.tokenizer.fingerprint:
        raise ValueError(f"{model} and {onnx} have different tokenizers: recreate them with dvc repro export_onnx")
    return loaded


def describe_model(model: Path) -> dict[str, Any]:
    """The section model: its size, its shape, and how it was trained."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    shape = {name: config[key] for name, key in SHAPE.items()}
    training = {key: config["chatmill"][key] for key in TRAINING if key in config["chatmill"]}
    parameters = sum(weight.numel() for weight in read_weights(weight_files(model)).values())
    return {"parameters": parameters, **shape, **training}


def trained_on_assistant_only(model: Path) -> bool:
    """Whether only the assistant's text had a loss weight in training."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return bool(config["chatmill"].get("prompt_loss_weight") == 0)


def text_section(
    corpus: Corpus, sources: list[str], nats: np.ndarray, ngram: NgramScore, *, trained_only: bool
) -> dict[str, Any]:
    """The section bits_per_byte: of all text, or only of the trained one if prompts have no weight.

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


def compression_section(
    test: TestSet,
    corpora: dict[TemplateName, Corpus],
    template: TemplateName,
    others: Iterable[Path],
) -> dict[str, Any]:
    """The section tokenizer; `corpora` are the test set in each template, `others` files of tokenizers to compare."""
    tokenizer = corpora[template].tokenizer
    num_messages = sum(map(len, test.conversations))
    documents = [record_segments(record, template) for record in test.records]

    def tokens_per_message(corpus: Corpus) -> float | None:
        return float(np.diff(corpus.offsets)[corpus.has_roles].sum() / num_messages) if num_messages else None

    return {
        "bytes_per_token": bytes_per_token(documents, tokenizer),
        "tokens_per_message": {name: tokens_per_message(corpus) for name, corpus in corpora.items()},
        "fingerprint": tokenizer.fingerprint,
        "compared": {path.stem: bytes_per_token(documents, load_tokenizer(path)) for path in others},
    }


def compare_engines(
    model: Path,
    onnx: Path,
    corpus: Corpus,
    template: TemplateName,
    questions: list[Question],
    parameters: EvaluateParameters,
    *,
    trained_only: bool,
) -> tuple[dict[str, Any], np.ndarray]:
    """The section engines, and the nats of each token under PyTorch, the first of them.

    Each engine answers the first `engine_prompts` of the questions in known phrasings.
    """
    few = [one for one in questions if one.skill["phrasing"] == "known" and one.rank < parameters.engine_prompts]
    result: dict[str, Any] = {}
    nats_of_pytorch = np.empty(0)
    for engine, weights in _open_engines(model, onnx, parameters.threads):
        nats = corpus.nats(engine.context, make_scorer(engine), parameters.stride)
        if not result:
            nats_of_pytorch = nats
        session = ChatSession(engine, corpus.tokenizer, CHATMILL_TEMPLATES[template])
        correct = [answer.correct for answer in answer_questions(session, few, parameters.max_tokens)]
        result[engine.name] = {
            "bits_per_byte": corpus.bits_per_byte(nats, trained_only=trained_only),
            "skills_macro": accuracies(few, correct).get("macro"),
            "size_mb": weights.stat().st_size / 1e6,
        }
    return result, nats_of_pytorch


def _open_engines(model: Path, onnx: Path, threads: int) -> Iterator[tuple[Engine, Path]]:
    network, _ = load_chat_model(model, torch.device("cpu"))
    yield PyTorchEngine(network, device="cpu", threads=threads), model / "model.safetensors"
    for name in engine_names(onnx):
        yield load_engine(onnx, name, threads=threads), onnx / ONNX_FILES[name]


def sense_sections(
    session: ChatSession, questions: dict[str, list[Question]], train: Path, max_tokens: int
) -> dict[str, Any]:
    """The sections sense and recall; none without questions to a persona."""
    if not questions:
        return {}

    def reply(conversation: Conversation) -> str:
        return session.greedy_reply(conversation, max_tokens)[0].text

    return measure_sense(questions, read_records(train), reply)


def chunks_section(engine: Engine, corpus: Corpus, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The section chunks, for a model that works on chunks, else none; adds `chunk_bytes` to each sample."""
    if not isinstance(engine, PyTorchEngine) or not engine.model.config.chunking:
        return {}
    model, tokenizer = engine.model, corpus.tokenizer
    documents = corpus.documents()
    starts = [chunk_starts(model, ids.tolist()) for ids in progress(documents, "find chunks", unit="conversation")]
    contents = [[tokenizer.token_bytes[token] for token in ids] for ids in documents]
    for sample in samples:
        ids = tokenizer.encode(f"{sample['prompt']}\n{sample['answer']}")
        parts = chunk_contents(chunk_starts(model, ids), [tokenizer.token_bytes[token] for token in ids])
        sample["chunk_bytes"] = [len(part) for part in parts]
    return {"chunks": chunk_statistics(starts, contents)}


def write_metrics(file: Path, content: dict[str, Any]) -> None:
    """Write sections; the intervals and numbers of cases of estimates are in sections of their own."""
    content = values_of(content) | {"intervals": field_of(content, "interval"), "counts": field_of(content, "n")}
    file.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")
