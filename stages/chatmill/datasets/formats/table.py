"""Rows of any table, by a mapping that says where the conversation is.

    format: table
    columns: {messages: utterances, role: speaker, content: text}
    roles: {user: [customer], assistant: [agent]}

`messages` is a list of messages, a list of texts whose speakers alternate, or a text with a mark before each turn
(`agent: Hello`). In place of it `prompt` and `completion` are texts, or lists of messages. A column is a key of the row
or a path of keys with dots between them. `roles` names what the speakers are called, besides the usual names.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.example import UnusableRowError, describe_value
from chatmill.datasets.formats.turns import Step, StepKind, check_turn_count, join_tools

Column = Annotated[str, Field(min_length=1)]
Speaker = Literal["system", "user", "assistant", "call", "output", "ignore"]
USUAL_NAMES: dict[Speaker, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "bot", "chatbot", "model"),
    "call": ("function_call", "tool_call"),
    "output": ("tool", "function", "observation", "tool_response", "ipython"),
}
Roles = Mapping[Speaker, tuple[str, ...]]
_MISSING = object()


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Columns(_Section):
    """Where the parts of a conversation are."""

    messages: Column | None = None
    role: Column = "role"  # of a message
    content: Column = "content"  # of a message
    prompt: Column | None = None
    input: Column | None = None  # follows the prompt after a blank line, where it is not empty
    completion: Column | None = None
    system: Column | None = None
    group: Column | None = None  # rows with an equal value are on the same side of the split

    @model_validator(mode="after")
    def _complete(self) -> "Columns":
        if (self.messages is None) == (self.prompt is None) or (self.prompt is None) != (self.completion is None):
            raise ValueError("expected either messages, or prompt and completion")
        return self


class TableMapping(_Section):
    """A mapping of rows to conversations."""

    columns: Columns
    roles: Roles = {}
    first: Literal["user", "assistant"] = "user"  # of texts whose speakers alternate

    def speakers(self) -> dict[str, Speaker]:
        """The speakers by the names that stand for them, in lower case; `roles` goes before the usual names."""
        result: dict[str, Speaker] = {}
        for names in (self.roles, USUAL_NAMES):
            for speaker, values in names.items():
                for value in values:
                    result.setdefault(value.lower(), speaker)
        return result


def reader(mapping: TableMapping) -> Callable[[Any], Conversation]:
    """The function that converts a row to a conversation, or raises UnusableRowError."""
    return partial(_conversation, mapping, mapping.speakers())


def value_at(entry: Any, column: str) -> Any:
    """The value of a column, or at a path of keys. Raises UnusableRowError with the columns that are there."""
    if isinstance(entry, dict) and column in entry:
        return entry[column]
    value = entry
    for key in column.split("."):
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        if value is _MISSING:
            raise UnusableRowError("missing_field", f"no column {column!r} in {describe_value(entry)}")
    return value


def _conversation(mapping: TableMapping, speakers: Mapping[str, Speaker], row: Any) -> Conversation:
    columns, steps = mapping.columns, list[Step]()
    if columns.system is not None and (text := _text(value_at(row, columns.system), columns.system)):
        steps.append(("system", text))
    if columns.messages is not None:
        steps += _turns(mapping, speakers, value_at(row, columns.messages), columns.messages)
    else:
        assert columns.prompt is not None and columns.completion is not None
        steps += _side(mapping, speakers, _question(row, columns), columns.prompt, "user")
        steps += _side(mapping, speakers, value_at(row, columns.completion), columns.completion, "assistant")
    check_turn_count(len(steps))
    return join_tools(steps)


def _question(row: Any, columns: Columns) -> Any:
    """The prompt, with the input after a blank line."""
    assert columns.prompt is not None
    prompt = value_at(row, columns.prompt)
    if columns.input is None or not (text := _text(value_at(row, columns.input), columns.input)):
        return prompt
    return f"{_text(prompt, columns.prompt)}\n\n{text}"


def _side(
    mapping: TableMapping, speakers: Mapping[str, Speaker], value: Any, column: str, speaker: StepKind
) -> Iterable[Step]:
    """The steps of a prompt or completion, which is a text or a list of messages."""
    return _messages(mapping, speakers, value) if isinstance(value, list) else [(speaker, _text(value, column))]


def _turns(mapping: TableMapping, speakers: Mapping[str, Speaker], value: Any, column: str) -> Iterable[Step]:
    if isinstance(value, str):
        return _marked(mapping, speakers, value)
    if not isinstance(value, list):
        raise UnusableRowError("missing_field", f"{column}: expected a list or a text, got {describe_value(value)}")
    if value and isinstance(value[0], str):
        return _alternating(value, mapping.first)
    return _messages(mapping, speakers, value)


def _messages(mapping: TableMapping, speakers: Mapping[str, Speaker], messages: Sequence[Any]) -> Iterator[Step]:
    columns = mapping.columns
    for message in messages:
        kind = _kind(speakers, _text(value_at(message, columns.role), columns.role))
        if kind is not None:
            yield kind, _text(value_at(message, columns.content), columns.content)


def _alternating(texts: Sequence[Any], first: Literal["user", "assistant"]) -> Iterator[Step]:
    order: tuple[StepKind, StepKind] = ("user", "assistant") if first == "user" else ("assistant", "user")
    for number, text in enumerate(texts):
        yield order[number % 2], _text(text, f"text {number + 1}")


def _marked(mapping: TableMapping, speakers: Mapping[str, Speaker], text: str) -> Iterator[Step]:
    """The turns of a text, each after the name of its speaker and a colon at the start of a line."""
    names = "|".join(re.escape(name) for name in sorted(speakers, key=len, reverse=True))
    pieces = re.split(rf"(?im)^[ \t]*({names})[ \t]*:[ \t]?", text)
    if pieces[0].strip() or len(pieces) == 1:
        raise UnusableRowError("no_marker", f"expected the name of a speaker and a colon, not {text[:40]!r}")
    for name, turn in zip(pieces[1::2], pieces[2::2], strict=True):
        if (kind := _kind(speakers, name)) is not None:
            yield kind, turn.strip("\n")


def _kind(speakers: Mapping[str, Speaker], name: str) -> StepKind | None:
    """The kind of a speaker's turns; None for those to leave out."""
    speaker = speakers.get(name.lower())
    if speaker is None:
        raise UnusableRowError("unknown_role", f"unknown role {name[:40]!r}: say whose it is in roles")
    return None if speaker == "ignore" else speaker


def _text(value: Any, column: str) -> str:
    """A text. Raises UnusableRowError for null and all else that is none."""
    if not isinstance(value, str):
        raise UnusableRowError("not_text", f"{column}: expected text, got {describe_value(value)}")
    return value
