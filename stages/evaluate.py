"""Measure bits per byte and chat skills, with every engine.

The model answers the last question of each conversation, greedily and with the calculator. `skills` are measured with
the main engine, which chats also use; `engines` compares all of them on the first `engine_prompts` questions of each
skill.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from pydantic import PositiveInt

from chatmill.conversation.chatml import Conversation, Message
from chatmill.conversation.template import TemplateName
from chatmill.encoded.token_files import read_meta, read_split
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.engines.torch.pytorch_engine import PyTorchEngine
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte, default_stride
from chatmill.evaluation.chunk_boundaries import chunk_contents, chunk_starts, chunk_statistics
from chatmill.evaluation.corpus import Corpus, bytes_per_token
from chatmill.evaluation.held_out_set import Question, TestSet, sample_test_set
from chatmill.evaluation.hits import hits_at_1, make_rankings
from chatmill.evaluation.intervals import Estimate, bits_interval, field_of, mean_of_shares, share, values_of
from chatmill.evaluation.ngram import NgramScore, score_with_ngrams
from chatmill.evaluation.rounding import rounded
from chatmill.evaluation.scoring import make_prefix_scorer, make_scorer
from chatmill.evaluation.skill_scoring import is_correct
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
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer

MAX_RANKINGS = 100  # conversations without `skill` for hits@1
MAX_TALK_ANSWERS = 200  # of them that are answered, to see what is copied
MAX_TALK = 1000  # of them from which other replies are taken


def answer_questions(session: ChatSession, questions: list[Question], max_tokens: int) -> tuple[list[bool], list[bool]]:
    """Whether each answer is correct, and whether the model ended it itself."""
    correct, stopped = [], []
    for question in progress(questions, f"skills with {session.engine.name}", unit="question"):
        message, stop = session.greedy_reply(question.conversation, max_tokens)
        correct.append(is_correct(question.skill, message.text))
        stopped.append(stop)
    return correct, stopped


def accuracies(questions: list[Question], correct: list[bool], phrasing: str = "known") -> dict[str, Estimate]:
    """Share of correct answers by skill, and `macro`, their mean; empty without questions."""
    by_skill = defaultdict(list)
    for question, answered in zip(questions, correct, strict=True):
        if question.skill["phrasing"] == phrasing:
            by_skill[question.skill["name"]].append(answered)
    shares = {name: share(by_skill[name]) for name in sorted(by_skill)}
    return {"macro": mean_of_shares(list(shares.values())), **shares} if shares else {}


def measure_ngram(tokens: Path, model: Path, corpus: Corpus, template: TemplateName) -> NgramScore:
    """The score of n-grams of the training text, which must be encoded as the corpus is."""
    meta = read_meta(tokens)
    if (meta.fingerprint, meta.template) != (corpus.tokenizer.fingerprint, template):
        raise ValueError(
            f"{tokens} was encoded with another tokenizer or template than that of {model}: recreate both with dvc "
            "repro train_model"
        )
    return score_with_ngrams(read_split(tokens, "train"), read_split(tokens, "validation"), corpus)


def measure_text(
    corpus: Corpus, sources: list[str], nats: np.ndarray, ngram: NgramScore, *, trained_only: bool
) -> dict[str, Any]:
    """The section bits_per_byte of the metrics; of all text, or only the assistant's if only that was trained."""
    of_sources = np.array(sources)

    def bits(nats: np.ndarray, *, assistant: bool, documents: np.ndarray | None = None) -> Estimate:
        sums = corpus.sums(nats, trained_only=assistant, documents=documents)
        value = bits_per_byte(float(sums[0].sum()), int(sums[1].sum()))
        return Estimate(value, bits_interval(*sums), int(np.count_nonzero(sums[1])))

    def by_source(nats: np.ndarray) -> dict[str, Estimate]:
        return {name: bits(nats, assistant=trained_only, documents=of_sources == name) for name in sorted(set(sources))}

    result: dict[str, Any] = {
        "all": None if trained_only else bits(nats, assistant=False),
        "assistant": bits(nats, assistant=True),
        "by_source": by_source(nats),
        "baselines": baselines(corpus.text()) | {"ngram": bits(ngram.nats, assistant=False)},
        "ngram_assistant": bits(ngram.nats, assistant=True),
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

    def compression(tokenizer: ChatTokenizer) -> float | None:
        return bytes_per_token(test.conversations, tokenizer, template)

    return {
        "bytes_per_token": compression(tokenizer),
        "tokens_per_message": {name: len(corpus.ids) / num_messages for name, corpus in corpora.items()},
        "fingerprint": tokenizer.fingerprint,
        "compared": {path.stem: compression(load_tokenizer(path)) for path in others},
    }


def answer_prompts(session: ChatSession, prompts: Path, max_tokens: int) -> list[dict[str, Any]]:
    """The answers to the prompts in a file, one per line."""
    try:
        lines = prompts.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{prompts}: not UTF-8 at byte {error.start}") from error
    result = []
    for line in filter(str.strip, lines):
        message, stopped = session.greedy_reply([Message.from_text("user", line)], max_tokens)
        result.append({"prompt": line, "answer": message.text, "stopped": stopped})
    return result


def answer_talk(session: ChatSession, talk: Iterable[Conversation], max_tokens: int) -> list[tuple[str, str]]:
    """The model's and the true last reply to each conversation whose last message fits into the context."""
    result = []
    for *prompt, true in progress(list(talk), "answers to look for in the training data", unit="answer"):
        last_turn = [message for message in prompt[:-1] if message.role == "system"] + prompt[-1:]
        if true.role == "assistant" and prompt and session.fits(last_turn, max_tokens):
            message, _ = session.greedy_reply(prompt, max_tokens)
            result.append((message.text, true.text))
    return result


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
        correct, _ = answer_questions(
            ChatSession(engine, corpus.tokenizer, CHATMILL_TEMPLATES[template]), questions, max_tokens
        )
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


def trained_on_assistant_only(model: Path) -> bool:
    """Whether only the assistant's text had a loss weight in training."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return bool(config["chatmill"].get("prompt_loss_weight") == 0)


@stage
def main(
    test: Path,
    train: Path,
    prompts: Path,
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
    compare_tokenizers: list[Path],
    stride: PositiveInt | None,
) -> None:
    """Read test conversations, the model and its export; write answers to the free prompts, and the metrics.

    Bits per byte are measured on `conversations` of the test set; answers are searched in those of `train`. `tokens` is
    the encoded training text, whose n-grams are a baseline. `skill_prompts` and `engine_prompts` limit the questions of
    each skill and phrasing. `compare_tokenizers` are files of other tokenizers in the folder `external`. Conversations
    longer than the context are scored in windows that move by `stride` tokens, by default half a context.
    """
    for file in compare_tokenizers:
        check_external(file, external, "evaluate.compare_tokenizers")
    sample = sample_test_set(test, conversations, skill_prompts, MAX_TALK)
    test_set, questions = sample.test, sample.questions
    loaded = load_model(onnx if engine_names(onnx) else model, device="cpu", threads=threads)
    tokenizer, template = loaded.tokenizer, CHATMILL_TEMPLATES[loaded.template.name].name
    if check_manifest(model) != tokenizer.fingerprint:
        raise ValueError(f"{model} and {onnx} have different tokenizers: recreate them with dvc repro export_onnx")
    corpora = {
        name: Corpus.from_conversations(test_set.conversations, tokenizer, name, threads)
        for name in get_args(TemplateName)
    }
    corpus, trained_only = corpora[template], trained_on_assistant_only(model)
    engine_questions = [
        question for question in questions if question.skill["phrasing"] == "known" and question.rank < engine_prompts
    ]

    ngram = measure_ngram(tokens, model, corpus, template)
    engines = open_engines(model, onnx, threads)
    compared, nats = measure_engines(
        engines, corpus, engine_questions, template, max_tokens=max_tokens, stride=stride, trained_only=trained_only
    )
    session = ChatSession(*loaded)
    correct, stopped = answer_questions(session, questions, max_tokens)
    free = answer_prompts(session, prompts, max_tokens)
    stopped += [answer["stopped"] for answer in free]
    talk = answer_talk(session, sample.talk[:MAX_TALK_ANSWERS], max_tokens)
    rankings = make_rankings(sample.talk, MAX_RANKINGS)
    segments, scorer = loaded.template.continue_final_message, make_prefix_scorer(loaded.engine)
    hits = hits_at_1(rankings, tokenizer, segments, loaded.engine.context, scorer)
    content = {
        "template": template,
        "stride": default_stride(loaded.engine.context) if stride is None else stride,
        "bits_per_byte": measure_text(corpus, test_set.sources, nats, ngram, trained_only=trained_only),
        "stop_nats_per_turn": corpus.stop_nats_per_turn(nats),
        "skills": accuracies(questions, correct) | {"held_back": accuracies(questions, correct, "held_back")},
        "stops_rate": share(stopped),
        "hits_at_1": share(hits),
        "verbatim": measure_copying(
            [answer["answer"] for answer in free] + [reply for reply, _ in talk], [true for _, true in talk], train
        ),
        "engines": compared,
        "tokenizer": measure_compression(test_set, tokenizer, corpora, template, compare_tokenizers),
    }
    if not questions:
        del content["skills"]
    if isinstance(loaded.engine, PyTorchEngine) and loaded.engine.model.config.chunking:
        content["chunks"] = describe_chunks(loaded.engine.model, corpus, free)
    samples.write_text("".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in free), encoding="utf-8")
    content = values_of(content) | {"intervals": field_of(content, "interval"), "counts": field_of(content, "n")}
    metrics.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")
