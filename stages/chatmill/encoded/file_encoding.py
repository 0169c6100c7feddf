"""Encoding of files of conversations and documents to token ids and their loss mask."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import islice, repeat
from pathlib import Path
from sys import intern

import numpy as np
from numpy.typing import NDArray

from chatmill.conversation import (
    IM_END,
    IM_START,
    ROLES,
    LossKind,
    Message,
    Record,
    Segment,
    TemplateName,
    conversation_segments,
    declare_tools,
    document_segments,
    is_document,
    message_segments,
    parse,
    parse_record,
    render,
)
from chatmill.encoded.token_files import EncodedShard
from chatmill.pipeline.progress import progress
from chatmill.record_files import check_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, EncodedConversations, join
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder
from chatmill.workers import FileRange, OrderedMap, shards_of

BATCH_RECORDS = 4096  # encoded at once, which bounds the memory
_DECLARES_TOOLS = json.dumps(render(declare_tools([])).removesuffix(f"{IM_END}\n"))[:-1].encode()


@cache
def _frame(role: str, is_trained: bool | None, template: TemplateName) -> tuple[list[Segment], LossKind, list[Segment]]:
    """The segments before the text of a message, the loss kind of that text, and the segments after it."""
    example = message_segments(Message.from_text(role, "x"), template, is_trained)
    place = next(i for i, segment in enumerate(example) if segment.text == "x")
    return example[:place], example[place].loss, example[place + 1 :]


def fast_segments(record: Record, template: TemplateName) -> list[Segment]:
    """`record_segments`, but faster: to parse and escape plain text would cost more than to encode it.

    Raises ValueError for text that is no conversation.
    """
    if is_document(record.text):
        return document_segments(record.text)
    before, *messages = record.text.split(IM_START)
    result = conversation_segments(parse(before), template)
    trained = repeat(None, len(messages)) if record.train is None else record.train
    for message, is_trained in zip(messages, trained, strict=True):
        role, _, content = message.partition("\n")
        body = content.removesuffix(f"{IM_END}\n")
        if body and len(body) < len(content) and "<|" not in body and role in ROLES:
            header, loss, footer = _frame(role, is_trained, template)
            result += (*header, Segment(body, loss), *footer)
        else:
            (turn,) = parse(IM_START + message)
            result += message_segments(turn, template, is_trained)
    return result


class LineError(ValueError):
    """A line, counted from 1, that cannot be encoded."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def encode_lines(
    lines: Iterable[bytes], tokenizer: ChatTokenizer, template: TemplateName
) -> tuple[EncodedConversations, list[str]]:
    """The records of some lines of a file, and the source of each. Raises LineError."""
    numbered = enumerate(lines, start=1)
    sources: list[str] = []
    parts: list[EncodedConversations] = []
    while batch := [_segments(line, number, template, sources) for number, line in islice(numbered, BATCH_RECORDS)]:
        parts.append(tokenizer.encode_conversations(batch))
    return join(parts, tokenizer.dtype), sources


def _segments(line: bytes, number: int, template: TemplateName, sources: list[str]) -> list[Segment]:
    try:
        record = parse_record(line)
        sources.append(intern(record.source))  # so that another process gets each name once
        return fast_segments(record, template)
    except ValueError as error:
        raise LineError(number, str(error)) from error


def encode_shards(
    file: Path, encode: Callable[[FileRange], EncodedShard], ordered_map: OrderedMap
) -> Iterator[EncodedShard]:
    """The records of a file, a shard at a time. Raises ValueError with file and line."""
    check_records(file)
    shards, count = shards_of(file), 0
    try:
        for shard in progress(ordered_map(encode, shards), f"encode {file.stem}", total=len(shards)):
            yield shard
            count += len(shard.sources)
    except LineError as error:
        raise ValueError(f"{file}:{count + error.number}: {error.reason}") from error


def encode_shard(shard: FileRange, *, folder: Path, fingerprint: str, template: TemplateName) -> EncodedShard:
    """The records of a shard, by the tokenizer of a folder. Raises LineError."""
    tokenizer, num_bytes = _tokenizer(folder, fingerprint)
    encoded, sources = encode_lines(shard.lines(), tokenizer, template)
    has_tools = any(_DECLARES_TOOLS in line for line in shard.lines())
    lossy = 0
    if tokenizer.vocabulary.missing_bytes:
        lossy = sum(bool(tokenizer.lost(parse_record(line).text)) for line in shard.lines())
    return EncodedShard(encoded, sources, int(num_bytes[encoded.ids].sum()), has_tools, lossy)


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, fingerprint: str) -> tuple[ChatTokenizer, NDArray[np.int64]]:
    vocabulary = read_folder(folder)
    assert vocabulary.fingerprint == fingerprint
    return ChatTokenizer(vocabulary), np.array(vocabulary.byte_lengths)
