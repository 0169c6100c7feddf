"""Encoding of files of conversations and documents to token ids and their loss mask."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice, product, repeat
from pathlib import Path

from chatmill.conversation.chatml import (
    CALCULATOR,
    IM_END,
    IM_START,
    ROLES,
    Message,
    declare_tools,
    is_document,
    parse,
    read_records,
    render,
)
from chatmill.conversation.template import (
    LossKind,
    Segment,
    TemplateName,
    conversation_segments,
    document_segments,
    message_segments,
)
from chatmill.pipeline.progress import progress
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, EncodedConversations

CONVERSATIONS_PER_BATCH = 4096  # conversations encoded at once, which bounds the memory


class Segmenter:
    """Splits the text of records into segments: `record_segments`, but faster.

    Plain-text messages use precomputed header and footer segments: parsing and escaping them would cost more than
    encoding them.
    """

    def __init__(self, template: TemplateName) -> None:
        self.template = template
        self.frames: dict[tuple[str, bool | None], tuple[list[Segment], LossKind, list[Segment]]] = {}
        for role, is_trained in product(ROLES, (None, False, True)):
            example = message_segments(Message.from_text(role, "x"), template, is_trained)
            place = next(i for i, segment in enumerate(example) if segment.text == "x")
            self.frames[role, is_trained] = example[:place], example[place].loss, example[place + 1 :]

    def __call__(self, text: str, train: Sequence[bool | None] | None = None) -> list[Segment]:
        """The segments of a record's text and its choice of trained messages. Raises ValueError for other text."""
        if is_document(text):
            return document_segments(text)
        before, *messages = text.split(IM_START)
        result = conversation_segments(parse(before), self.template)
        for message, is_trained in zip(messages, repeat(None) if train is None else train, strict=train is not None):
            role, _, content = message.partition("\n")
            body = content.removesuffix(f"{IM_END}\n")
            if body and len(body) < len(content) and "<|" not in body and (role, is_trained) in self.frames:
                header, loss, footer = self.frames[role, is_trained]
                result += (*header, Segment(body, loss), *footer)
            else:
                (turn,) = parse(IM_START + message)
                result += message_segments(turn, self.template, is_trained)
        return result


def read_segments(file: Path, template: TemplateName) -> Iterator[list[Segment]]:
    """The file's records in a template. Raises ValueError with file and line."""
    segment = Segmenter(template)
    for number, record in enumerate(
        progress(read_records(file), f"encode {file.stem}", unit=" conversations"), start=1
    ):
        try:
            yield segment(record.text, record.train)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error


def trained_tools(file: Path) -> list[str]:
    """The calculator, where a conversation declares it; models are trained to call no other tool."""
    begin = json.dumps(render(declare_tools([])).removesuffix(f"{IM_END}\n"))[:-1].encode()
    with file.open("rb") as lines:
        return [CALCULATOR] if any(begin in line for line in lines) else []


def encode_file(file: Path, tokenizer: ChatTokenizer, template: TemplateName) -> Iterator[EncodedConversations]:
    """The file's conversations as tokens, in batches."""
    conversations = read_segments(file, template)
    while batch := list(islice(conversations, CONVERSATIONS_PER_BATCH)):
        yield tokenizer.encode_conversations(batch)
