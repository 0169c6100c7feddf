"""Bits per byte of any model on any data, by the definitions of chatmill.evaluation.bits_per_byte.

Shapes: N tokens of D documents, one after another.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.inputs import TextOrConversation, iter_inputs, text_or_messages
from chatmill.app.named_models import named_errors
from chatmill.conversation import LossKind, Record, Segment
from chatmill.datasets.formats.example import Document, Example, Reject
from chatmill.datasets.formats.registry import read_dataset
from chatmill.engines.engine import as_memory_error
from chatmill.evaluation.bits_per_byte import default_stride, make_scorer
from chatmill.evaluation.corpus import BitsPerByte, Corpus
from chatmill.evaluation.intervals import Interval, bits_interval
from chatmill.inference.chat_template import ChatTemplate
from chatmill.inference.model_loading import LoadedModel
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

MAX_WINDOW_LOGITS = 1 << 28  # 1 GB of float32


class ScoredDocument(NamedTuple):
    file: Path
    place: str
    content: TextOrConversation


class Measurement(NamedTuple):
    documents: Sequence[ScoredDocument]  # D, which the tokenizer can say as they are
    bits_per_byte: BitsPerByte
    by_file: dict[str, BitsPerByte]
    bytes: int  # of the scored text
    tokens: int  # of the scored text
    context: int  # tokens that the model reads at once
    stride: int  # tokens by which windows of longer documents move
    left_out: list[str]  # places of documents that the tokenizer cannot say
    tokens_per_second: float  # of all tokens, control tokens included
    sums: dict[str, tuple[np.ndarray, np.ndarray]]  # (D,) nats and bytes of each document's text: all, assistant


def read_documents(file: Path, format: str | None = None, limit: int | None = None) -> list[ScoredDocument]:
    """The first `limit` documents of a file.

    `format` is one of those that prepare reads. Without it a .json or .jsonl file holds conversations, and any other
    file is one text. Raises ValueError with file and line for a document that cannot be read.
    """
    result: list[ScoredDocument] = []
    entries = iter_inputs(file)
    if format:
        entries = ((item.place, _content_of(item)) for item in read_dataset(file, format, limit=limit, seed=0))
    for place, content in entries:
        if len(result) == limit:
            break
        with named_errors(place):
            for text in _texts_of(content):
                check_text(text)
        result.append(ScoredDocument(file, place, content))
    if not result:
        raise ValueError(f"{file}: no documents: expected conversations or a text")
    return result


def measure(
    loaded: LoadedModel, documents: Sequence[ScoredDocument], context: int | None = None, stride: int | None = None
) -> Measurement:
    """Measure a model in windows of `context` tokens, by default its own context; they move by `stride`, half of that.

    Raises ValueError where the tokenizer is another model's, or a probability is 0 or not a number, and MemoryError
    with the remedy where memory is used up.
    """
    engine = loaded.engine
    left_out = [one.place for one in documents if not can_say(loaded, one)]
    documents = [one for one in documents if can_say(loaded, one)]
    if not documents:
        raise ValueError("the tokenizer cannot say some characters of each document: expected other data")
    length = min(engine.context, max(2, MAX_WINDOW_LOGITS // engine.vocab_size)) if context is None else context
    if not 2 <= length <= engine.context:
        raise ValueError(f"context: expected 2 to {engine.context} tokens, got {length}")
    stride = default_stride(length) if stride is None else stride
    corpus = _encode(documents, loaded)
    if int(corpus.ids.max(initial=0)) >= engine.vocab_size:
        known = f"the model has logits for {engine.vocab_size} tokens: it is another model's"
        raise ValueError(f"the tokenizer gives ids up to {corpus.ids.max()}, but {known}")
    start = time.monotonic()
    try:
        nats = corpus.nats(length, make_scorer(engine), stride)
    except (RuntimeError, MemoryError) as error:
        if as_memory_error(error, engine.device) is None:
            raise
        raise MemoryError(f"out of memory on {engine.device}: lower --context, or use a smaller model") from error
    seconds = time.monotonic() - start
    for document, document_nats in zip(documents, corpus.by_document(nats), strict=True):
        if not np.isfinite(document_nats).all():
            raise ValueError(f"{document.place}: the model's probability of this text is 0 or not a number")
    files = np.array([str(document.file) for document in documents])
    return Measurement(
        documents,
        corpus.bits(nats),
        {file: corpus.bits(nats, documents=files == file) for file in dict.fromkeys(files.tolist())},
        int(corpus.num_bytes[corpus.is_scored].sum()),
        int(corpus.is_scored.sum()),
        length,
        stride,
        left_out,
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


def can_say(loaded: LoadedModel, document: ScoredDocument) -> bool:
    """Whether the tokenizer has tokens for all characters of a document."""
    return not any(map(loaded.tokenizer.lost, _texts_of(document.content)))


def _encode(documents: Sequence[ScoredDocument], loaded: LoadedModel) -> Corpus:
    _, tokenizer, template, *_ = loaded
    scored = tuple(LossKind) if template.escapes else (LossKind.PROMPT, LossKind.TRAINED)
    segments = [_to_segments(document.content, template) for document in documents]
    return Corpus.from_segments(segments, tokenizer, escaped=template.escapes, scored=scored)


def _to_segments(content: TextOrConversation, template: ChatTemplate) -> list[Segment]:
    plain, train = (text_or_messages(content), content.train) if isinstance(content, Record) else (content, None)
    return template.text(plain) if isinstance(plain, str) else template.full_conversation(plain, train)


def text_of(document: ScoredDocument) -> str:
    return "\n".join(_texts_of(document.content))


def _texts_of(content: TextOrConversation) -> Iterable[str]:
    if isinstance(content, str | Record):
        return [content if isinstance(content, str) else content.text]
    return (part.text for message in content for part in message.parts)


def _content_of(item: Example | Document | Reject) -> TextOrConversation:
    if isinstance(item, Reject):
        raise ValueError(f"{item.place}: {item.detail}")
    return item.text if isinstance(item, Document) else item.conversation
