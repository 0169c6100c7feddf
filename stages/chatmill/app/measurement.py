"""Bits per byte of any model on any data, by the definitions of chatmill.evaluation.bits_per_byte.

Of a conversation `all` are its text tokens: under chatmill's own templates the headers, too, as in the pipeline's
metrics; under a template made elsewhere what the messages say. `assistant` is what the assistant says. A text that is
no conversation follows the token that begins one. What has nothing before it is not scored.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.inputs import TextOrConversation, iter_inputs
from chatmill.conversation.template import LossKind, Segment
from chatmill.datasets.formats.example import Example, Reject
from chatmill.datasets.formats.registry import read_dataset
from chatmill.engines.engine import Engine, as_memory_error
from chatmill.evaluation.corpus import BitsPerByte, Corpus
from chatmill.evaluation.scoring import make_scorer
from chatmill.inference.chat_template import ChatTemplate
from chatmill.inference.model_loading import LoadedModel
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

MAX_WINDOW_LOGITS = 1 << 28  # of a window: 1 GB


class Document(NamedTuple):
    """A conversation or a text, and the file and line where it stands."""

    file: Path
    place: str
    content: TextOrConversation


class Measurement(NamedTuple):
    """What a model needs for some documents."""

    bits_per_byte: BitsPerByte
    by_file: dict[str, BitsPerByte]
    bytes: int  # of the text that is scored, as are the tokens
    tokens: int
    context: int  # tokens that a window holds
    windowed_documents: list[str]  # places of the documents that take more
    tokens_per_second: float  # of all tokens, control tokens included


def read_documents(file: Path, format: str | None = None, limit: int | None = None) -> list[Document]:
    """The first `limit` documents of a file.

    `format` is one of those that prepare reads. Without it a .json or .jsonl file holds conversations or records of
    them, and any other file is one text. Raises ValueError with file and line where one cannot be read.
    """
    result: list[Document] = []
    entries = (
        ((item.place, _conversation_of(item)) for item in read_dataset(file, format, limit=limit, seed=0))
        if format
        else None
    )
    for place, content in entries or iter_inputs(file):
        if len(result) == limit:
            break
        try:
            for text in [content] if isinstance(content, str) else (p.text for m in content for p in m.parts):
                check_text(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        result.append(Document(file, place, content))
    if not result:
        raise ValueError(f"{file}: nothing in it to measure a model on")
    return result


def measure(loaded: LoadedModel, documents: Sequence[Document], context: int | None = None) -> Measurement:
    """What a model needs for each byte; `context` is how many tokens a window holds, the model's own unless given.

    Raises ValueError where the model is not one of this tokenizer, or gives no probability.
    """
    engine, tokenizer, template, _ = loaded
    length = window_length(engine, context)
    scored = tuple(LossKind) if template.escapes else (LossKind.PROMPT, LossKind.TRAINED)
    corpus = Corpus.from_segments(
        [to_segments(document.content, template) for document in documents], tokenizer, scored=scored
    )
    if int(corpus.ids.max(initial=0)) >= engine.vocab_size:
        raise ValueError(f"the tokenizer makes ids up to {corpus.ids.max()}: the model knows {engine.vocab_size}")
    start = time.monotonic()
    nats = corpus_nats(engine, corpus, length)
    seconds = time.monotonic() - start
    for document, of_text in zip(documents, corpus.by_document(nats), strict=True):
        if not np.isfinite(of_text).all():
            raise ValueError(f"{document.place}: the model gives it no probability, or none that is a number")
    files = np.array([str(document.file) for document in documents])
    return Measurement(
        corpus.bits(nats),
        {file: corpus.bits(nats, documents=files == file) for file in dict.fromkeys(files.tolist())},
        int(corpus.num_bytes[corpus.is_scored].sum()),
        int(corpus.is_scored.sum()),
        length,
        [document.place for document, size in zip(documents, np.diff(corpus.offsets), strict=True) if size > length],
        len(corpus.ids) / max(seconds, 1e-9),
    )


def window_length(engine: Engine, requested: int | None) -> int:
    """How many tokens are scored at a time. Raises ValueError where more are asked for than the model reads."""
    if requested is None:
        return min(engine.context, max(2, MAX_WINDOW_LOGITS // engine.vocab_size))
    if not 2 <= requested <= engine.context:
        raise ValueError(f"a context of {requested} tokens: the model's is {engine.context}, and 2 are the fewest")
    return requested


def to_segments(content: TextOrConversation, template: ChatTemplate) -> list[Segment]:
    """A document as a model reads it."""
    return template.text(content) if isinstance(content, str) else template.full_conversation(content)


def corpus_nats(engine: Engine, corpus: Corpus, length: int) -> np.ndarray:
    """(N,) the nats of each token. Raises MemoryError with what to do where memory is used up."""
    try:
        return corpus.nats(length, make_scorer(engine))
    except (RuntimeError, MemoryError) as error:
        if as_memory_error(error, engine.device) is None:
            raise
        raise MemoryError(f"out of memory on {engine.device}: lower --context, or take a smaller model") from error


def _conversation_of(item: Example | Reject) -> TextOrConversation:
    if isinstance(item, Reject):
        raise ValueError(f"{item.place}: {item.detail}")
    return item.conversation
