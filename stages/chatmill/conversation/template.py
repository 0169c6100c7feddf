r"""Renders a conversation as the text that a model reads, and marks what it is trained on.

Two templates of the same conversation (line breaks are literal):

    chatml                                  markers
    <|bos|><|im_start|>user                 <|bos|>Human: Hi
    Hi<|im_end|>
    <|im_start|>assistant                   Assistant: Hello<|im_end|>
    Hello<|im_end|>

`markers` is the older format. Its boundaries are plain text, so content that contains `Human:` can forge a turn.

A document is `<|bos|>`, its text and `<|im_end|>` in both, and all of it is trained.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

from chatmill.conversation.chatml import (
    BOS,
    CALL_END,
    CALL_START,
    IM_END,
    IM_START,
    OUTPUT_END,
    OUTPUT_START,
    Message,
    Record,
    escape,
    is_document,
    parse,
)

TemplateName = Literal["chatml", "markers"]
MARKERS = {"system": "System:", "user": "Human:", "assistant": "Assistant:"}


class LossKind(IntEnum):
    """How a token enters the loss. The mask is set where it is TRAINED."""

    IGNORED = 0  # tool output, which the model does not generate, and messages that are not trained by choice
    PROMPT = 1  # headers, system and user text: weighted by train_model.prompt_loss_weight
    TRAINED = 2  # the assistant's text and calls, and the token that ends its turn; documents and their end


class Segment(NamedTuple):
    """Text with one kind of loss, or a control token. Adjacent texts form one span and are encoded together."""

    text: str
    loss: LossKind
    control: bool = False


def record_segments(record: Record, template: TemplateName = "chatml") -> list[Segment]:
    """The segments of a conversation, of which messages may be trained or not by choice, or of a document."""
    if is_document(record.text):
        return document_segments(record.text)
    return conversation_segments(parse(record.text), template, record.train)


def document_segments(text: str) -> list[Segment]:
    """The segments of a document, whose text is escaped."""
    return [
        Segment(BOS, LossKind.IGNORED, control=True),
        Segment(text, LossKind.TRAINED),
        Segment(IM_END, LossKind.TRAINED, control=True),
    ]


def conversation_segments(
    conversation: Iterable[Message], template: TemplateName = "chatml", train: Sequence[bool | None] | None = None
) -> list[Segment]:
    """The segments of a conversation, `<|bos|>` included; `train` has an entry for each message, as in a Record."""
    messages = list(conversation)
    result = [Segment(BOS, LossKind.IGNORED, control=True)]
    for message, is_trained in zip(messages, train or [None] * len(messages), strict=True):
        result += message_segments(message, template, is_trained)
    return result


def message_segments(
    message: Message, template: TemplateName = "chatml", is_trained: bool | None = None
) -> list[Segment]:
    """The segments of one message, with its header and its end; None trains it if it is the assistant's."""
    loss = _loss_of(message.role, is_trained)
    result = header_segments(message.role, template)
    if template == "markers" and message.parts:
        result.append(Segment(" ", loss))
    for part in message.parts:
        if part.kind == "text":
            result.append(Segment(escape(part.text), loss))
        elif part.kind == "call":
            result.append(Segment(CALL_START, loss, control=True))
            result.append(Segment(escape(part.text), loss))
            result.append(Segment(CALL_END, loss, control=True))
        else:
            result += output_segments(part.text)
    if template == "chatml":
        result.append(Segment(IM_END, loss, control=True))
        result.append(Segment("\n", LossKind.PROMPT))
    else:
        if message.role == "assistant":
            result.append(Segment(IM_END, loss, control=True))
        result.append(Segment("\n\n", LossKind.PROMPT))
    return [segment for segment in result if segment.text]


def _loss_of(role: str, is_trained: bool | None) -> LossKind:
    if is_trained is None:
        return LossKind.TRAINED if role == "assistant" else LossKind.PROMPT
    return LossKind.TRAINED if is_trained else LossKind.IGNORED


def header_segments(role: str, template: TemplateName = "chatml") -> list[Segment]:
    """The header before the content of a message; that of the assistant ends the prompt of an answer."""
    if template == "markers":
        return [Segment(MARKERS[role], LossKind.PROMPT)]
    return [Segment(IM_START, LossKind.PROMPT, control=True), Segment(f"{role}\n", LossKind.PROMPT)]


def output_segments(output: str) -> list[Segment]:
    """The segments of a tool output, which is inserted after its call."""
    return [
        Segment(OUTPUT_START, LossKind.IGNORED, control=True),
        Segment(escape(output), LossKind.IGNORED),
        Segment(OUTPUT_END, LossKind.IGNORED, control=True),
    ]


def spans(segments: Iterable[Segment]) -> list[list[Segment]]:
    """The segments in groups; each group is one control token, or text that is encoded in one call."""
    result: list[list[Segment]] = []
    for segment in segments:
        if segment.control or not result or result[-1][-1].control:
            result.append([segment])
        else:
            result[-1].append(segment)
    return result
