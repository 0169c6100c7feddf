"""Minimal pairs: how often a model finds an acceptable sentence more probable than one that differs from it in a word.

    look at this purple things .        (unacceptable)
    look at this purple thing .

Files are text, one for each paradigm, in which a line with the unacceptable sentence is followed by one with the
acceptable sentence, as in Zorro (Huebner et al. 2021, github.com/phueb/Zorro); or JSON lines with `sentence_good` and
`sentence_bad`, as in BLiMP (Warstadt et al. 2020, arXiv:1912.00582).

A sentence's score is its total log-probability as the first message of the assistant. A chat model is trained on
messages, in full on those of the assistant, and never on text without a header. For a model without a chat template
that is the text after the BOS token. The token that ends a message is not scored. Ties count one half.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.inputs import TextOrConversation, iter_inputs, text_or_messages
from chatmill.conversation import Conversation, LossKind, Message, Record, Segment
from chatmill.datasets.formats.example import Document, Example, Reject
from chatmill.datasets.formats.registry import read_dataset
from chatmill.engines.engine import Engine, as_memory_error
from chatmill.evaluation.bits_per_byte import Ids, default_stride, token_nats
from chatmill.evaluation.corpus import BitsPerByte, Corpus
from chatmill.evaluation.intervals import Estimate, Interval, bits_interval, mean_of_shares, share
from chatmill.evaluation.ngram import CountedText, score_with_ngrams
from chatmill.evaluation.scoring import OwnNetwork, make_prefix_scorer, make_scorer
from chatmill.inference.chat_template import ChatTemplate
from chatmill.inference.model_loading import LoadedModel
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, check_text

TIE = 1e-6  # nats, within which two sentences are equally probable

Nats = Callable[[list[Ids]], list[np.ndarray]]
"""Maps texts to the nats of each of their tokens: (T,) -> (T,)."""


class Pair(NamedTuple):
    """Two sentences, and their file and line."""

    good: str
    bad: str
    place: str


class PairScores(NamedTuple):
    """The share of pairs in which the acceptable sentence wins, by paradigm, and the mean of the paradigms."""

    paradigms: dict[str, Estimate]
    mean: Estimate

    def rows(self) -> list[tuple[str, Estimate]]:
        """The paradigms, and their mean last."""
        return [*self.paradigms.items(), ("mean", self.mean)]


def read_pairs(path: Path, limit: int | None = None) -> dict[str, list[Pair]]:
    """The first `limit` pairs of a file, or of each .txt and .jsonl file of a folder, by the name of the file.

    Raises ValueError with file and line.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in (".txt", ".jsonl")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no pairs: expected .txt or .jsonl files")
    return {file.stem: _read_file(file)[:limit] for file in files}


def score_pairs(
    paradigms: Mapping[str, Sequence[Pair]],
    tokenizer: ChatTokenizer,
    continue_final_message: Callable[[Conversation], list[Segment]],
    nats: Nats,
) -> PairScores:
    """Compare the sentences of each pair under any model that gives nats.

    Raises ValueError where the probability of a sentence is 0 or not a number.
    """
    pairs = [pair for group in paradigms.values() for pair in group]
    sentences = [text for pair in pairs for text in (pair.good, pair.bad)]
    segments = [continue_final_message([Message.from_text("assistant", text)]) for text in sentences]
    encoded = tokenizer.encode_conversations(segments)
    borders = encoded.offsets[1:-1]
    masks = np.split(encoded.loss == LossKind.TRAINED, borders)
    found = nats(np.split(encoded.ids, borders))
    totals = np.array([one[mask].sum() for one, mask in zip(found, masks, strict=True)]).reshape(len(pairs), 2)
    for pair, row in zip(pairs, totals, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(f"{pair.place}: the model's probability of this pair is 0 or not a number")
    lead = totals[:, 1] - totals[:, 0]
    outcomes = np.where(np.abs(lead) <= TIE, 0.5, lead > 0).tolist()
    shares = {name: share([outcomes.pop(0) for _ in group]) for name, group in paradigms.items()}
    return PairScores(shares, mean_of_shares(list(shares.values())))


def equal_nats(documents: list[Ids]) -> list[np.ndarray]:
    """The nats of a model of equal logits, which prefers the sentence of fewer tokens; 0.5 is chance only beside it."""
    return [np.ones(len(ids)) for ids in documents]


def _read_file(file: Path) -> list[Pair]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not text.strip():
        raise ValueError(f"{file}: no pairs: the file is empty")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(f"{file}:{number}: an empty line: expected a sentence")
    pairs = _json_pairs(file, lines) if file.suffix == ".jsonl" else _text_pairs(file, lines)
    for pair in pairs:
        for sentence in (pair.good, pair.bad):
            try:
                check_text(sentence)
            except ValueError as error:
                raise ValueError(f"{pair.place}: {error}") from error
    return pairs


def _text_pairs(file: Path, lines: Sequence[str]) -> list[Pair]:
    if len(lines) % 2:
        raise ValueError(
            f"{file}: an odd number of lines, {len(lines):,}: expected pairs, the unacceptable sentence first"
        )
    return [Pair(lines[i + 1], lines[i], f"{file}:{i + 1}") for i in range(0, len(lines), 2)]


def _json_pairs(file: Path, lines: Sequence[str]) -> list[Pair]:
    result = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{number}: not JSON: {error}") from error
        good, bad = (row.get(key) if isinstance(row, dict) else None for key in ("sentence_good", "sentence_bad"))
        if not isinstance(good, str) or not isinstance(bad, str) or not good.strip() or not bad.strip():
            raise ValueError(f"{file}:{number}: expected an object with the texts sentence_good and sentence_bad")
        result.append(Pair(good, bad, f"{file}:{number}"))
    return result


# Bits per byte of any model on any data, by the definitions of chatmill.evaluation.bits_per_byte.

MAX_WINDOW_LOGITS = 1 << 28  # 1 GB of float32


class ScoredDocument(NamedTuple):
    """A conversation or a text, and its file and line."""

    file: Path
    place: str
    content: TextOrConversation


class Measurement(NamedTuple):
    """Bits per byte of a model on some documents, and how they were measured."""

    bits_per_byte: BitsPerByte
    by_file: dict[str, BitsPerByte]
    bytes: int  # of the scored text
    tokens: int  # of the scored text
    context: int  # tokens that the model reads at once
    stride: int  # tokens by which windows of longer documents move
    windowed_documents: list[str]  # places of these documents
    tokens_per_second: float  # of all tokens, control tokens included
    sums: dict[str, tuple[np.ndarray, np.ndarray]]  # (D,) nats and bytes of each document's text: all, assistant


def read_documents(file: Path, format: str | None = None, limit: int | None = None) -> list[ScoredDocument]:
    """The first `limit` documents of a file.

    `format` is one of those that prepare reads. Without it a .json or .jsonl file holds conversations, and any other
    file is one text. Raises ValueError with file and line for a document that cannot be read.
    """
    result: list[ScoredDocument] = []
    entries = (
        ((item.place, _content_of(item)) for item in read_dataset(file, format, limit=limit, seed=0))
        if format
        else None
    )
    for place, content in entries or iter_inputs(file):
        if len(result) == limit:
            break
        try:
            for text in _texts_of(content):
                check_text(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        result.append(ScoredDocument(file, place, content))
    if not result:
        raise ValueError(f"{file}: no documents: expected conversations or a text")
    return result


def measure(
    loaded: LoadedModel, documents: Sequence[ScoredDocument], context: int | None = None, stride: int | None = None
) -> Measurement:
    """Measure a model in windows of `context` tokens, by default its own context; they move by `stride`, half of that.

    Raises ValueError where the tokenizer is another model's, or a probability is 0 or not a number.
    """
    engine = loaded.engine
    length = window_length(engine, context)
    stride = default_stride(length) if stride is None else stride
    corpus = encode_documents(documents, loaded)
    if int(corpus.ids.max(initial=0)) >= engine.vocab_size:
        raise ValueError(
            f"the tokenizer gives ids up to {corpus.ids.max()}, but the model has logits for "
            f"{engine.vocab_size} tokens: the tokenizer is another model's"
        )
    start = time.monotonic()
    nats = corpus_nats(engine, corpus, length, stride)
    seconds = time.monotonic() - start
    for document, document_nats in zip(documents, corpus.by_document(nats), strict=True):
        if not np.isfinite(document_nats).all():
            raise ValueError(f"{document.place}: the model's probability of this text is 0 or not a number")
    files = np.array([str(document.file) for document in documents])
    return Measurement(
        corpus.bits(nats),
        {file: corpus.bits(nats, documents=files == file) for file in dict.fromkeys(files.tolist())},
        int(corpus.num_bytes[corpus.is_scored].sum()),
        int(corpus.is_scored.sum()),
        length,
        stride,
        [one.place for one, size in zip(documents, np.diff(corpus.offsets), strict=True) if size - 1 > length],
        len(corpus.ids) / max(seconds, 1e-9),
        {"all": corpus.sums(nats, trained_only=False), "assistant": corpus.sums(nats, trained_only=True)},
    )


def interval(measurement: Measurement, text: str) -> Interval | None:
    """The interval of the bits per byte of `all` text, or of the `assistant`'s."""
    return bits_interval(*measurement.sums[text])


def difference(measurement: Measurement, other: Measurement, text: str) -> Interval | None:
    """The paired interval of the bits per byte by which a model needs more than another; None for different bytes."""
    nats, num_bytes = measurement.sums[text]
    other_nats, other_bytes = other.sums[text]
    return bits_interval(nats - other_nats, num_bytes) if np.array_equal(num_bytes, other_bytes) else None


class PairMeasurement(NamedTuple):
    """The minimal pairs in which a model prefers the acceptable sentence, and those in which simpler models do."""

    by_model: PairScores
    by_length: PairScores  # a model of equal logits
    by_ngrams: PairScores | None

    def rows(self) -> list[tuple[str, list[Estimate]]]:
        """The shares of the models by paradigm, and their mean last."""
        scores = [one.rows() for one in self if one]
        return [(paradigm[0][0], [share for _, share in paradigm]) for paradigm in zip(*scores, strict=True)]


def measure_pairs(
    loaded: LoadedModel, pairs: Mapping[str, Sequence[Pair]], counted: CountedText | None = None
) -> PairMeasurement:
    """Compare the sentences of minimal pairs under a model, and under n-grams of the text `counted`, if it is given."""
    engine, tokenizer, template, *_ = loaded
    scorer = make_scorer(engine) if isinstance(engine, OwnNetwork) else make_prefix_scorer(engine)
    length = window_length(engine, None)

    def nats(documents: list[Ids]) -> list[np.ndarray]:
        return token_nats(documents, length, scorer)

    def ngram_nats(documents: list[Ids]) -> list[np.ndarray]:
        assert counted, "it is called only then"
        offsets = np.cumsum([0, *map(len, documents)])
        return np.split(score_with_ngrams(counted, tokenizer, np.concatenate(documents), offsets).nats, offsets[1:-1])

    def scores(nats: Nats) -> PairScores:
        return score_pairs(pairs, tokenizer, template.continue_final_message, nats)

    return PairMeasurement(scores(nats), scores(equal_nats), scores(ngram_nats) if counted else None)


def window_length(engine: Engine, requested: int | None) -> int:
    """How many tokens the model reads at once. Raises ValueError where its context has fewer than requested."""
    if requested is None:
        return min(engine.context, max(2, MAX_WINDOW_LOGITS // engine.vocab_size))
    if not 2 <= requested <= engine.context:
        raise ValueError(f"context: expected 2 to {engine.context} tokens, got {requested}")
    return requested


def encode_documents(documents: Sequence[ScoredDocument], loaded: LoadedModel) -> Corpus:
    """The documents in the model's tokens and template, and which of them are scored."""
    _, tokenizer, template, *_ = loaded
    scored = tuple(LossKind) if template.escapes else (LossKind.PROMPT, LossKind.TRAINED)
    segments = [to_segments(document.content, template) for document in documents]
    return Corpus.from_segments(segments, tokenizer, escaped=template.escapes, scored=scored)


def to_segments(content: TextOrConversation, template: ChatTemplate) -> list[Segment]:
    plain, train = (text_or_messages(content), content.train) if isinstance(content, Record) else (content, None)
    return template.text(plain) if isinstance(plain, str) else template.full_conversation(plain, train)


def _texts_of(content: TextOrConversation) -> Iterable[str]:
    if isinstance(content, str | Record):
        return [content if isinstance(content, str) else content.text]
    return (part.text for message in content for part in message.parts)


def corpus_nats(engine: Engine, corpus: Corpus, length: int, stride: int) -> np.ndarray:
    """(N,) the nats of each token. Raises MemoryError with the remedy where memory is used up."""
    try:
        return corpus.nats(length, make_scorer(engine), stride)
    except (RuntimeError, MemoryError) as error:
        if as_memory_error(error, engine.device) is None:
            raise
        raise MemoryError(f"out of memory on {engine.device}: lower --context, or use a smaller model") from error


def _content_of(item: Example | Document | Reject) -> TextOrConversation:
    if isinstance(item, Reject):
        raise ValueError(f"{item.place}: {item.detail}")
    return item.text if isinstance(item, Document) else item.conversation
