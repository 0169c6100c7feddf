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

from chatmill.app.subject import Subject, read_whole_file
from chatmill.conversation.template import Loss, Segment
from chatmill.datasets.formats.item import Item, Reject
from chatmill.datasets.formats.registry import read
from chatmill.engines.engine import Engine, memory_error
from chatmill.evaluation.corpus import Bits, Corpus
from chatmill.evaluation.scoring import score_by
from chatmill.inference.chat_template import ChatTemplate
from chatmill.inference.loading import Loaded
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

MOST_LOGITS = 1 << 28  # of a window: 1 GB


class Document(NamedTuple):
    """A conversation or a text, and the file and line where it stands."""

    file: Path
    place: str
    content: Subject


class Measurement(NamedTuple):
    """What a model needs for some documents."""

    bits_per_byte: Bits
    by_file: dict[str, Bits]
    bytes: int  # of the text that is scored, as are the tokens
    tokens: int
    context: int  # tokens that a window holds
    long: list[str]  # places of the documents that take more
    tokens_per_second: float  # of all tokens, control tokens included


def read_documents(file: Path, format: str | None = None, limit: int | None = None) -> list[Document]:
    """The first `limit` documents of a file.

    `format` is one of those that prepare reads. Without it a .json or .jsonl file holds conversations or records of
    them, and any other file is one text. Raises ValueError with file and line where one cannot be read.
    """
    result: list[Document] = []
    found = ((item.place, _kept(item)) for item in read(file, format, limit=limit, seed=0)) if format else None
    for place, content in found or read_whole_file(file):
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


def measure(loaded: Loaded, documents: Sequence[Document], context: int | None = None) -> Measurement:
    """What a model needs for each byte; `context` is how many tokens a window holds, the model's own unless given.

    Raises ValueError where the model is not one of this tokenizer, or gives no probability.
    """
    engine, tokenizer, template, _ = loaded
    length = window_length(engine, context)
    scored = tuple(Loss) if template.escapes else (Loss.PROMPT, Loss.TRAINED)
    corpus = Corpus.of([written(document.content, template) for document in documents], tokenizer, scored=scored)
    if int(corpus.ids.max(initial=0)) >= engine.vocab_size:
        raise ValueError(f"the tokenizer makes ids up to {corpus.ids.max()}: the model knows {engine.vocab_size}")
    start = time.monotonic()
    nats = nats_of(engine, corpus, length)
    seconds = time.monotonic() - start
    for document, of_text in zip(documents, corpus.by_document(nats), strict=True):
        if not np.isfinite(of_text).all():
            raise ValueError(f"{document.place}: the model gives it no probability, or none that is a number")
    files = np.array([str(document.file) for document in documents])
    return Measurement(
        corpus.bits(nats),
        {file: corpus.bits(nats, documents=files == file) for file in dict.fromkeys(files.tolist())},
        int(corpus.num_bytes[corpus.is_text].sum()),
        int(corpus.is_text.sum()),
        length,
        [document.place for document, size in zip(documents, np.diff(corpus.offsets), strict=True) if size > length],
        len(corpus.ids) / max(seconds, 1e-9),
    )


def window_length(engine: Engine, asked: int | None) -> int:
    """How many tokens are scored at a time. Raises ValueError where more are asked for than the model reads."""
    if asked is None:
        return min(engine.context, max(2, MOST_LOGITS // engine.vocab_size))
    if not 2 <= asked <= engine.context:
        raise ValueError(f"a context of {asked} tokens: the model's is {engine.context}, and 2 are the fewest")
    return asked


def written(content: Subject, template: ChatTemplate) -> list[Segment]:
    """A document as a model reads it."""
    return template.text(content) if isinstance(content, str) else template.whole(content)


def nats_of(engine: Engine, corpus: Corpus, length: int) -> np.ndarray:
    """(N,) the nats of each token. Raises MemoryError with what to do where memory is used up."""
    try:
        return corpus.nats(length, score_by(engine))
    except (RuntimeError, MemoryError) as error:
        if memory_error(error, engine.device) is None:
            raise
        raise MemoryError(f"out of memory on {engine.device}: lower --context, or take a smaller model") from error


def _kept(item: Item | Reject) -> Subject:
    if isinstance(item, Reject):
        raise ValueError(f"{item.place}: {item.detail}")
    return item.conversation
