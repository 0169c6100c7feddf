"""Turn conversations into token ids and their loss mask."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from chatmill.conversation import parse, read_records
from chatmill.progress import progress
from chatmill.stage import Output, stage
from chatmill.template import Segment, Template, segments
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer, Encoded
from chatmill.tokenizer.loading import load
from chatmill.tokens import SPLITS, Counts, Meta, text_bytes, write_meta, write_split

CHUNK = 4096  # conversations encoded at once, which bounds the memory


def read_segments(file: Path, template: Template) -> Iterator[list[Segment]]:
    """The file's conversations in a template. Raises ValueError with file and line."""
    for number, record in enumerate(
        progress(read_records(file), f"encode {file.stem}", unit=" conversations"), start=1
    ):
        try:
            yield segments(parse(record.text), template)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error


def encode(file: Path, tokenizer: ChatTokenizer, template: Template) -> Iterator[Encoded]:
    """The file's conversations as tokens, a chunk at a time."""
    conversations = read_segments(file, template)
    while chunk := list(islice(conversations, CHUNK)):
        yield tokenizer.encode_conversations(chunk)


@stage
def main(train: Path, validation: Path, tokenizer: Path, tokens: Output, *, template: Template) -> None:
    """Write the ids and the loss of every conversation's tokens, and how much text they hold."""
    chat_tokenizer = load(tokenizer)
    num_bytes = text_bytes(chat_tokenizer)
    tokens.mkdir()
    counts = {
        split: write_split(tokens, split, encode(file, chat_tokenizer, template), num_bytes)
        for split, file in zip(SPLITS, (train, validation), strict=True)
    }
    if not counts["train"].conversations:
        raise ValueError(f"{train}: no conversations")
    meta = Meta(
        fingerprint=chat_tokenizer.fingerprint,
        template=template,
        vocab_size=chat_tokenizer.vocab_size,
        **{name: {split: getattr(count, name) for split, count in counts.items()} for name in Counts._fields},
    )
    write_meta(tokens, meta)
