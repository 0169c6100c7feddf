r"""Conversations, and the ChatML text as which they are stored and read by models.

One question, answered with the help of the calculator (line breaks are literal):

    <|im_start|>user
    What is 12 * 3?<|im_end|>
    <|im_start|>assistant
    <|python_start|>12*3<|python_end|><|output_start|>36<|output_end|>It is 36.<|im_end|>

Tools are declared by a first system message that begins with the line "Tools: calculator"; a system text of the user's
follows on the next line.

`render` and `parse` are inverses for any content: `escape` puts a backslash after every `<` that is followed by a
backslash or a bar, so no content ever contains `<|`, and every `<|` in rendered text belongs to a control token.

A document is text without roles. It is stored as its escaped text alone, without any control token, while a rendered
conversation begins with one.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

BOS, IM_START, IM_END, PAD = "<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
CALL_START, CALL_END = "<|python_start|>", "<|python_end|>"
OUTPUT_START, OUTPUT_END = "<|output_start|>", "<|output_end|>"
CONTROL_TOKENS = (  # in the order of their ids
    BOS, IM_START, IM_END, CALL_START, CALL_END, OUTPUT_START, OUTPUT_END, PAD,
)  # fmt: skip
ROLES = ("system", "user", "assistant")

CALCULATOR = "calculator"  # the one tool that models are trained to call
_DECLARATION = "Tools: "
_PLAIN = r"([^<]*(?:<(?!\|)[^<]*)*)"  # no control token in it
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n([^<]*(?:<(?!\|im_)[^<]*)*)<\|im_end\|>\n")
_TOOL = re.compile(rf"<\|python_start\|>{_PLAIN}<\|python_end\|>(?:<\|output_start\|>{_PLAIN}<\|output_end\|>)?")


@dataclass(frozen=True, slots=True)
class Part:
    kind: Literal["text", "call", "output"]
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its role and its parts. Text parts are neither empty nor adjacent; an output follows its call."""

    role: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}: expected one of {', '.join(ROLES)}")
        previous = None
        for part in self.parts:
            if part.kind != "text" and self.role != "assistant":
                raise ValueError(f"tool {part.kind} in a {self.role} message: only the assistant uses tools")
            if part.kind == "text" and (not part.text or previous == "text"):
                raise ValueError("text parts of a message must not be empty or adjacent: join them")
            if part.kind == "output" and previous != "call":
                raise ValueError("tool output without a call before it")
            previous = part.kind

    @classmethod
    def from_text(cls, role: str, text: str) -> "Message":
        return cls(role, (Part("text", text),) if text else ())

    @property
    def text(self) -> str:
        """The text parts joined, without tool calls and outputs."""
        return "".join(part.text for part in self.parts if part.kind == "text")


Conversation = list[Message]


def escape(text: str) -> str:
    r"""Text without `<|`: `a<|b` becomes `a<\|b`. `unescape` inverts it."""
    return text.replace("<\\", "<\\\\").replace("<|", "<\\|") if "<" in text else text


def unescape(text: str) -> str:
    return text.replace("<\\", "<")


def render_message(message: Message) -> str:
    return f"{IM_START}{message.role}\n{''.join(map(_render_part, message.parts))}{IM_END}\n"


def render(conversation: Iterable[Message]) -> str:
    """The conversation as ChatML, escaped; `parse` is its exact inverse."""
    return "".join(map(render_message, conversation))


def _render_part(part: Part) -> str:
    if part.kind == "text":
        return escape(part.text)
    start, end = (CALL_START, CALL_END) if part.kind == "call" else (OUTPUT_START, OUTPUT_END)
    return f"{start}{escape(part.text)}{end}"


def parse(text: str) -> Conversation:
    """The messages of a rendered text. Raises ValueError for text that `render` does not write."""
    messages, position = [], 0
    while position < len(text):
        match = _MESSAGE.match(text, position)
        if match is None:
            raise ValueError(f"not a rendered conversation at character {position}: {text[position : position + 60]!r}")
        messages.append(Message(match[1], tuple(_parse_parts(match[2]))))
        position = match.end()
    return messages


def _parse_parts(text: str) -> Iterator[Part]:
    position = 0
    for match in _TOOL.finditer(text):
        if match.start() > position:
            yield _text_part(text[position : match.start()])
        yield Part("call", unescape(match[1]))
        if match[2] is not None:
            yield Part("output", unescape(match[2]))
        position = match.end()
    if position < len(text):
        yield _text_part(text[position:])


def _text_part(text: str) -> Part:
    if "<|" in text:
        raise ValueError(f"misplaced control token: {text[text.index('<|') :][:60]!r}")
    return Part("text", unescape(text))


def is_document(text: str) -> bool:
    """Whether the text of a record is a document: escaped text, and no rendered conversation.

    An empty text is a conversation without messages.
    """
    return bool(text) and "<|" not in text


def declare_tools(conversation: Conversation, tools: Collection[str] = (CALCULATOR,)) -> Conversation:
    if not tools or declared_tools(conversation):
        return conversation
    line = f"{_DECLARATION}{', '.join(tools)}"
    if conversation and conversation[0].role == "system":
        text = conversation[0].text
        return [Message.from_text("system", f"{line}\n{text}" if text else line), *conversation[1:]]
    return [Message.from_text("system", line), *conversation]


def declared_tools(conversation: Conversation) -> list[str]:
    first = conversation[0] if conversation else None
    if first is None or first.role != "system" or not first.text.startswith(_DECLARATION):
        return []
    return first.text.split("\n")[0].removeprefix(_DECLARATION).split(", ")


def check_turns(conversation: Conversation, *, opening: bool = False) -> None:
    """Raise ValueError unless the roles are [system], user, assistant, user, assistant … and no message is blank.

    With `opening`, a message of the assistant may precede the first one of the user.
    """
    turns = conversation[1:] if conversation and conversation[0].role == "system" else conversation
    if opening and turns and turns[0].role == "assistant":
        turns = turns[1:]
    for index, message in enumerate(turns):
        expected = ("user", "assistant")[index % 2]
        if message.role != expected:
            raise ValueError(f"role out of order: message {index + 1} is from {message.role}, expected {expected}")
    for message in conversation:
        if not any(part.text.strip() for part in message.parts):
            raise ValueError(f"empty turn of {message.role}")
    if len(turns) < 2:
        raise ValueError("no answer: expected a message of the user and one of the assistant")


@dataclass(frozen=True, slots=True)
class Record:
    """A conversation or a document on disk: one JSON line.

    Records of one `group` are in the same split. `skill` says how the last answer is scored
    (chatmill.evaluation.answering); only conversations with a known right answer have it. `train` says for each message
    whether its text and its end are trained; None stands for what is usual: the assistant's are, and all others are
    prompt. A message that is not trained by choice has no part in the loss.
    """

    source: str
    group: str
    text: str
    skill: dict[str, Any] | None = None
    train: list[bool | None] | None = None

    def __post_init__(self) -> None:
        if self.train is None:
            return
        count = 0 if is_document(self.text) else self.text.count(IM_START)
        if not isinstance(self.train, list) or not all(flag is None or isinstance(flag, bool) for flag in self.train):
            raise ValueError(f"train: expected a list of true, false and null, got {str(self.train)[:60]}")
        if len(self.train) != count:
            raise ValueError(f"train: expected one entry for each of {count} messages, got {len(self.train)}")

    def to_json(self) -> str:
        """The record as one line, newline included."""
        fields: dict[str, Any] = {"source": self.source, "group": self.group, "text": self.text, "skill": self.skill}
        if self.train is not None:
            fields["train"] = self.train
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


def parse_record(line: bytes) -> Record:
    """The record of a line that `prepare` or `mix` wrote. Raises ValueError for other lines."""
    try:
        return Record(**json.loads(line))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of a conversation: {error}") from error


def text_hash(text: str) -> int:
    """A number below 2**64 by which records are sampled: all copies of a text are in a sample, or none."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


# Renders a conversation as the text that a model reads, and marks what it is trained on.

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
    """The segments of one message, with its header and its end; its text has the loss of `loss_of`."""
    loss = loss_of(message, is_trained)
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


def loss_of(message: Message, is_trained: bool | None) -> LossKind:
    """The loss of a message's text; None trains it if it is the assistant's."""
    if is_trained is None:
        return LossKind.TRAINED if message.role == "assistant" else LossKind.PROMPT
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
