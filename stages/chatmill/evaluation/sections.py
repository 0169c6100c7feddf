"""The sections of evaluate.json, one function for each."""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, PositiveInt

from chatmill.checkpoints.weights import read_weights, weight_files
from chatmill.conversation import LossKind, Segment, TemplateName, record_segments
from chatmill.engines.engine import ONNX_FILES
from chatmill.engines.onnx_engine import graph_bytes
from chatmill.evaluation.answering import accuracies, answer_questions, fits, graded
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte, make_scorer, rounded
from chatmill.evaluation.corpus import Corpus, bytes_per_token
from chatmill.evaluation.held_out_set import Question, TestSample, TestSet, sample_test_set
from chatmill.evaluation.intervals import Estimate, bits_interval, field_of, values_of
from chatmill.evaluation.ngram import NgramScore
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.model_loading import LoadedModel, engine_names, load_engine, load_model
from chatmill.pipeline.manifest import check_manifest, read_text
from chatmill.pipeline.progress import log
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
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
    full_size: PositiveInt
    threads: PositiveInt


SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
}
PROMPTS = ("skill_prompts", "engine_prompts", "talk_prompts")
MAX_TALK_ANSWERS = 200  # replies to the test set's talk, to see what is copied
SCORED = (LossKind.PROMPT, LossKind.TRAINED)  # not the program's own text
TRAINING = ("steps", "epochs", "precision", "compile", "threads", "device", "conversations")


def sample_within_budget(
    test: Path, parameters: EvaluateParameters, size: int
) -> tuple[EvaluateParameters, TestSample]:
    """What is measured on a model of `size` parameters: a larger one on fewer conversations and prompts.

    Conversations are as many times fewer as it is larger than `full_size`, prompts by the square root of that, since
    their shares have the wider intervals.
    """
    larger = max(1.0, size / parameters.full_size)
    share = larger**-0.5

    def fewer(number: int, share: float) -> int:
        return max(1, round(number * share))

    conversations = parameters.conversations and fewer(parameters.conversations, 1 / larger)
    prompts = {name: fewer(getattr(parameters, name), share) for name in PROMPTS}
    found = parameters.model_copy(update={"conversations": conversations, **prompts})
    if larger > 1:
        log(
            "evaluate",
            f"the model is {larger:.0f} times as large as evaluate.full_size: {conversations or 'all'} conversations, "
            f"{found.skill_prompts} prompts of each skill, {found.talk_prompts} of each kind of talk",
        )
    limits = found.conversations, found.skill_prompts, fewer(MAX_TALK_ANSWERS, share), found.talk_prompts
    return found, sample_test_set(test, *limits)


def that_fits(session: ChatSession, sample: TestSample, max_tokens: int) -> TestSample:
    """The sample, without what does not fit into the context; of how many questions this is true is logged."""

    def fitting(questions: list[Question]) -> list[Question]:
        return [one for one in questions if fits(session, one.conversation, max_tokens)]

    kinds = {kind: kept for kind, asked in sample.talk_questions.items() if (kept := fitting(asked))}
    answered = (one for one in sample.talk if one[:-1] and one[-1].role == "assistant")
    talk = [one for one in answered if fits(session, one[:-1], max_tokens)]
    short = sample._replace(questions=fitting(sample.questions), talk_questions=kinds, talk=talk)
    before, after = (len(one.questions) + sum(map(len, one.talk_questions.values())) for one in (sample, short))
    if left_out := before - after:
        room = session.engine.context
        log("evaluate", f"questions that do not fit into a context of {room} are left out: {left_out}")
    return short


def few_questions(questions: list[Question], parameters: EvaluateParameters) -> list[Question]:
    """The first `engine_prompts` of the questions in known phrasings."""
    return [one for one in questions if one.skill["phrasing"] == "known" and one.rank < parameters.engine_prompts]


def load_chat(model: Path, onnx: Path, threads: int) -> LoadedModel:
    """The model with which chats are held: the export, if there is one. Raises ValueError if its tokenizer differs."""
    loaded = load_model(onnx if engine_names(onnx) else model, device="cpu", threads=threads)
    if check_manifest(model) != loaded.tokenizer.fingerprint:
        raise ValueError(f"{model} and {onnx} have different tokenizers: recreate them with dvc repro export_onnx")
    return loaded


def describe_model(model: Path) -> tuple[dict[str, Any], bool]:
    """The section model: its size, its shape, and how it was trained; and whether only on the assistant's text."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    shape = {name: config[key] for name, key in SHAPE.items()}
    training = {key: config["chatmill"][key] for key in TRAINING if key in config["chatmill"]}
    parameters = sum(weight.numel() for weight in read_weights(weight_files(model)).values())
    return {"parameters": parameters, **shape, **training}, config["chatmill"].get("prompt_loss_weight") == 0


def text_section(
    corpus: Corpus, sources: list[str], nats: np.ndarray, ngram: NgramScore, *, trained_only: bool
) -> dict[str, Any]:
    """The section bits_per_byte: of all text, or only of the trained one if prompts have no weight.

    Trained are the assistant's text and documents, which have no assistant.
    """
    of_sources, bits = np.array(sources), partial(_bits, corpus)

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
    test: TestSet, corpora: dict[TemplateName, Corpus], template: TemplateName, others: Iterable[Path]
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

    Each engine answers `few_questions`.
    """
    few = few_questions(questions, parameters)
    result: dict[str, Any] = {}
    nats_of_pytorch = np.empty(0)
    weights = {"pytorch": model / "model.safetensors"} | {name: onnx / ONNX_FILES[name] for name in engine_names(onnx)}
    for name, file in weights.items():
        engine = load_engine(file.parent, name, device="cpu", threads=parameters.threads)
        nats = corpus.nats(engine.context, make_scorer(engine), parameters.stride)
        if not result:
            nats_of_pytorch = nats
        session = ChatSession(engine, corpus.tokenizer, CHATMILL_TEMPLATES[template])
        correct = graded(few, answer_questions(session, few, parameters.max_tokens))
        result[name] = {
            "bits_per_byte": corpus.bits_per_byte(nats, trained_only=trained_only),
            "skills_macro": accuracies(few, correct).get("macro"),
            "size_mb": graph_bytes(file) / 1e6,
        }
    return result, nats_of_pytorch


def read_paragraphs(file: Path, tokenizer: ChatTokenizer) -> list[str]:
    """The paragraphs of a text, which blank lines separate, but for those that the tokenizer cannot say."""
    paragraphs = (one.strip() for one in read_text(file).split("\n\n"))
    said = [one for one in paragraphs if one and not tokenizer.lost(one)]
    if not said:
        raise ValueError(f"{file}: no text")
    return said


def initial_section(
    path: Path | None, trained: LoadedModel, sample: TestSample, general: Path, parameters: EvaluateParameters
) -> dict[str, Any]:
    """The section initial: `before` is of the initial model with its own tokenizer and template, `after` of the other.

    Bits per byte are those of answers in the test set, which each reads in its own template, and of a general text. The
    section is left out for a new model, and where the initial one is not here.
    """
    if path is None:
        return {}
    if not path.exists():
        log("evaluate", f"{path} is not here: what was learnt and forgotten since is not measured")
        return {}
    initial = load_model(path, device="cpu", threads=parameters.threads)
    paragraphs, test = read_paragraphs(general, trained.tokenizer), sample.test
    questions = few_questions(sample.questions, parameters)
    talk = [(one, record.train) for one, record in zip(test.conversations, test.records, strict=True) if one]
    sources = np.array([source for one, source in zip(test.conversations, test.sources, strict=True) if one])
    result: dict[str, Any] = {}
    for name, loaded in (("before", initial), ("after", trained)):
        template = loaded.template
        answers = _scored(loaded, [template.full_conversation(one, train) for one, train in talk])
        session = ChatSession(*loaded)
        correct = graded(questions, answer_questions(session, questions, parameters.max_tokens))
        result[name] = {
            "general": _bits(*_scored(loaded, [template.text(one) for one in paragraphs]), trained=False),
            "answers": _bits(*answers, trained=True),
            "answers_by_source": {
                source: _bits(*answers, trained=True, documents=sources == source) for source in sorted({*sources})
            },
            "skills_macro": accuracies(questions, correct).get("macro"),
        }
    return {"initial": result}


def _scored(loaded: LoadedModel, documents: Sequence[list[Segment]]) -> tuple[Corpus, np.ndarray]:
    corpus = Corpus.from_segments(documents, loaded.tokenizer, escaped=loaded.template.escapes, scored=SCORED)
    return corpus, corpus.nats(loaded.engine.context, make_scorer(loaded.engine))


def _bits(corpus: Corpus, nats: np.ndarray, *, trained: bool, documents: np.ndarray | None = None) -> Estimate:
    sums = corpus.sums(nats, trained_only=trained, documents=documents)
    value = bits_per_byte(float(sums[0].sum()), int(sums[1].sum()))
    return Estimate(value, bits_interval(*sums), int(np.count_nonzero(sums[1])))


def write_metrics(file: Path, content: dict[str, Any]) -> None:
    """Write sections; the intervals and numbers of cases of estimates are in sections of their own."""
    content = values_of(content) | {"intervals": field_of(content, "interval"), "counts": field_of(content, "n")}
    file.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")
