"""Rows of any table, by a mapping that says where the conversation is (chatmill.datasets.formats.mapping)."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chatmill.datasets.formats.containers import Shortened
from chatmill.datasets.formats.example import (
    Dropped,
    Example,
    Extent,
    Step,
    StepKind,
    Turn,
    UnusableRowError,
    check_turn_count,
    declare,
    describe_value,
    join_tools,
    num_bytes,
    split_turns,
    text_of,
)
from chatmill.datasets.formats.json_document import parse_json
from chatmill.datasets.formats.mapping import (
    MISSING,
    OPTIONAL,
    OPTIONAL_IN_MESSAGES,
    TRAIN_FIELDS,
    Columns,
    TableMapping,
    content_bytes,
    value_at,
)
from chatmill.datasets.formats.trees import best_path, messages_of
from chatmill.datasets.split import column_group

MARK_START = r"(?:#{1,6} ?)?(\*\*|__|[*_]|)"  # of a turn, whose mark may be a heading of Markdown, or emphasised
_ABSENT = object()


class TableReader:
    """Converts rows to conversations. `unseen` are the optional columns that no row has had."""

    def __init__(self, mapping: TableMapping) -> None:
        columns = mapping.columns
        self._mapping, self._columns, self._speakers = mapping, columns, mapping.speakers()
        self._pair = columns.prompt or "", columns.response or columns.chosen or ""  # that a row without messages has
        order: tuple[StepKind, StepKind] = ("user", "assistant")
        self._order = order if mapping.first != "assistant" else (order[1], order[0])  # in which two speakers begin
        names = "|".join(re.escape(name) for name in sorted(mapping.marks(), key=len, reverse=True))
        self._marks = re.compile(rf"(?im)^[ \t]*{MARK_START}({names})[ \t]*(?:\1[ \t]*:|:\1)[ \t]?")
        named = self._columns.model_dump(exclude_none=True).items()
        self.unseen = {name: column for name, column in named if name in (*OPTIONAL, *OPTIONAL_IN_MESSAGES)}

    def see(self, row: Any) -> None:
        """Take note of the optional columns that a row has, whether it can be converted or not."""
        for name, column in list(self.unseen.items()):
            entries = self._messages_in(row) if name in OPTIONAL_IN_MESSAGES else [row]
            if any(value_at(entry, column, _ABSENT) is not _ABSENT for entry in entries):
                del self.unseen[name]

    def example(self, place: str, row: Any) -> Example:
        """The conversation of a row. Raises UnusableRowError, which has the extent of the row."""
        dropped = list[Dropped]()
        try:
            wanted = self._mapping.languages
            if wanted is not None and (found := self._optional(row, "language")) not in wanted:
                raise UnusableRowError("language", f"language {found!r:.40}: expected one of {', '.join(wanted)}")
            turns = self.turns(row, dropped)
        except UnusableRowError as error:
            error.extent = self._extent(row)
            raise
        notes = ["chosen_side"] if self._optional(row, "rejected") is not None else []
        notes += ["null_arguments"] * isinstance(row, Shortened)
        group = self._optional(row, "group")
        return Example(place, None if group is None else column_group(str(group)), turns, None, dropped, notes)

    def turns(self, row: Any, dropped: list[Dropped]) -> list[Turn]:
        """The turns of a row; what is left out is added to `dropped`. Raises UnusableRowError."""
        steps = self._steps(row, dropped)
        check_turn_count(len(steps))
        turns, names = join_tools(steps), _tool_names(self._optional(row, "tools"))
        return declare(turns, names) if names else turns

    # The parts of a row.

    def _optional(self, row: Any, name: str) -> Any:
        """The value of a column that may be missing; None if it is."""
        column = getattr(self._columns, name)
        return None if column is None else value_at(row, column, None)

    def _text(self, row: Any, name: str) -> str:
        value = self._optional(row, name)
        return "" if value is None else _check_text(value, name)

    def _messages_in(self, row: Any) -> list[Any]:
        """What is or may be a message in a row, readable or not; of a tree all of its messages."""
        columns = self._columns
        names = (columns.messages, columns.prompt, columns.response, columns.chosen)
        values = [value_at(row, name, None) for name in names if name is not None]
        if columns.replies is not None:
            return messages_of(values[0], columns.replies)
        if columns.messages is not None and isinstance(values[0], str):
            values[0] = from_json(values[0])
        found = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
        return [message for entry in found for message in (entry if isinstance(entry, list) else [entry])]

    def _extent(self, row: Any) -> Extent:
        """The messages of a row that cannot be converted, and the bytes of their text, as far as they are known."""
        history = self._optional(row, "history")
        pairs = [pair for pair in history if isinstance(pair, list)] if isinstance(history, list) else []
        messages = [*self._messages_in(row), *(text for pair in pairs for text in pair)]
        messages += [system] if (system := self._optional(row, "system")) else []
        content = self._columns.content
        texts = [value_at(item, content, None) if isinstance(item, dict) else item for item in messages]
        texts.append(self._optional(row, "query"))
        return Extent(sum(item is not None for item in messages), sum(map(content_bytes, texts)))

    # Its steps: the system message and the history, then a conversation, or a prompt and an answer.

    def _opening(self, row: Any) -> Iterator[Step]:
        if text := self._text(row, "system"):
            yield Step("system", text)
        history = self._optional(row, "history")
        if history not in (None, "") and not isinstance(history, list):
            raise UnusableRowError("missing_field", f"history: expected a list, got {describe_value(history)}")
        for pair in history or ():
            if not isinstance(pair, list) or len(pair) != 2:
                raise UnusableRowError("missing_field", f"history: expected pairs of texts, got {describe_value(pair)}")
            yield Step("user", _check_text(pair[0], "history"))
            yield Step("assistant", _check_text(pair[1], "history"))

    def _steps(self, row: Any, dropped: list[Dropped]) -> list[Step]:
        columns, steps = self._columns, list(self._opening(row))
        if columns.messages is not None:
            return [*steps, *self._conversation(value_at(row, columns.messages), dropped)]
        prompt, response = self._pair
        asked, query, given = value_at(row, prompt), self._text(row, "query"), value_at(row, response)
        if query:
            asked = f"{_check_text(asked, prompt)}\n\n{query}"
        if _are_texts(asked) or _are_texts(given):
            return steps + self._exchanges(asked, given)
        steps += self._side(asked, prompt, "user", dropped)
        answer = self._side(given, response, "assistant", dropped)
        if columns.chosen is not None and answer and answer[0].kind in ("system", "user"):  # it repeats the prompt
            steps = [] if answer[0].kind == "system" else [step for step in steps if step.kind == "system"]
        return steps + answer

    def _exchanges(self, questions: Any, answers: Any) -> list[Step]:
        """Each question before the answer at its place, of lists or of one text and a list."""
        asked, given = (value if isinstance(value, list) else [value] for value in (questions, answers))
        if len(asked) != len(given):
            prompt, response = self._pair
            counts = f"{len(asked):,} in {prompt} and {len(given):,} in {response}"
            raise UnusableRowError("unequal_lists", f"expected as many answers as questions, got {counts}")
        return _alternating([text for pair in zip(asked, given, strict=True) for text in pair], ("user", "assistant"))

    def _side(self, value: Any, column: str, speaker: StepKind, dropped: list[Dropped]) -> list[Step]:
        """The steps of a prompt or an answer, which is a text, a message or a list of messages."""
        if isinstance(value, list | dict):
            return list(self._messages(value if isinstance(value, list) else [value], dropped))
        return [Step(speaker, _check_text(value, column))]

    def _conversation(self, value: Any, dropped: list[Dropped]) -> Iterator[Step] | list[Step]:
        if self._columns.replies is not None:
            value, others = best_path(value, self._columns)
            dropped += others
        if isinstance(value, str) and self._mapping.turn_separator:
            texts = [text.strip() for text in split_turns(value, self._mapping.turn_separator)]
            return _alternating(texts if texts[-1] else texts[:-1], self._order)
        if isinstance(value, str):
            value = from_json(value)
        if isinstance(value, str):
            return self._marked(value, dropped)
        if not isinstance(value, list):
            column = self._columns.messages
            raise UnusableRowError("missing_field", f"{column}: expected a list or a text, got {describe_value(value)}")
        if _are_texts(value):
            return _alternating(value, self._order)
        if value and all(isinstance(item, list) for item in value):
            value = [message for item in value for message in item]
        return self._messages(value, dropped)

    def _messages(self, messages: Sequence[Any], dropped: list[Dropped]) -> Iterator[Step]:
        columns, unnamed = self._columns, list[str]()
        for message in messages:
            name = _name(value_at(message, columns.role), columns.role)
            try:
                kind, calls = self._kind(name, unnamed), _tool_calls(message)
            except UnknownRoleError as error:
                raise UnknownRoleError(*self._unknown(messages)) from error
            content = value_at(message, columns.content, None if calls else MISSING)
            text, inline = ("", []) if content is None and calls else _read_content(content, columns.content)
            if kind is None:
                dropped.append(_ignored(name, text))
                continue
            train, calls = _is_trained(message, columns.train), inline + calls
            if text or not calls:
                yield Step(kind, text, 1, train, _id_in(message, "tool_call_id"))
            for number, call in enumerate(calls):
                yield call._replace(messages=int(not text and not number), train=train)

    def _marked(self, text: str, dropped: list[Dropped]) -> Iterator[Step]:
        """The turns of a text, each after the name of its speaker and a colon at the start of a line."""
        pieces, unnamed = self._marks.split(text), list[str]()
        if pieces[0].strip() or len(pieces) == 1:
            raise UnusableRowError("no_marker", f"expected the name of a speaker and a colon, not {text[:40]!r}")
        check_turn_count(len(pieces) // 3)
        for name, turn in zip(pieces[2::3], pieces[3::3], strict=True):
            content = turn.strip("\n")
            if (kind := self._kind(name, unnamed)) is None:
                dropped.append(_ignored(name, content))
            else:
                yield Step(kind, content)

    # Who speaks.

    def _unknown(self, messages: Sequence[Any]) -> list[str]:
        role = self._columns.role
        values = (value_at(message, role, None) for message in messages if isinstance(message, dict))
        names = {_name(value, role) for value in values if isinstance(value, str | int)}
        return sorted(name for name in names if name.strip().lower() not in self._speakers)

    def _kind(self, name: str, unnamed: list[str]) -> StepKind | None:
        """The kind of a speaker's turns; None for those to leave out.

        `unnamed` are the speakers of this conversation who are not in roles, in their order; with `first` there may be
        two.
        """
        speaker = self._speakers.get(name.strip().lower())
        if speaker is not None:
            return None if speaker == "ignore" else speaker
        if name not in unnamed:
            unnamed.append(name)
        if self._mapping.first is None or len(unnamed) > 2:
            raise UnknownRoleError(name)
        return self._order[unnamed.index(name)]


class UnknownRoleError(UnusableRowError):
    """Raised for speakers whom no rule maps."""

    def __init__(self, *names: str) -> None:
        self.names = [name[:40] for name in names[:10]]
        unknown = f"unknown role{'s' * (len(names) > 1)} {', '.join(map(repr, self.names))}"
        super().__init__("unknown_role", f"{unknown}: add {'them' if len(names) > 1 else 'it'} to roles")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def _alternating(texts: Sequence[Any], order: tuple[StepKind, StepKind]) -> list[Step]:
    """The steps of the texts of two speakers. Raises UnusableRowError for what is no text."""
    return [Step(order[number % 2], _check_text(text, f"text {number + 1}")) for number, text in enumerate(texts)]


def _ignored(name: str, text: str) -> Dropped:
    return Dropped("ignored_role", Extent(1, num_bytes(text)), f"{name[:40]!r}: {text[:60]!r}")


def from_json(text: str) -> Any:
    """The list that a text holds as JSON, as cells of a CSV file do, or else the text."""
    try:
        return parse_json(text) if text.lstrip().startswith("[") else text
    except ValueError:
        return text


def _name(value: Any, column: str) -> str:
    """The name of a speaker, who may have a number instead, or be the one of whom something is true."""
    return str(value).lower() if isinstance(value, int) else _check_text(value, column)


def reader_of(**columns: str) -> TableReader:
    return TableReader(TableMapping(columns=Columns.model_validate(columns)))


# The content of one message: text, parts of text, and calls of tools.


def _read_content(content: Any, field: str) -> tuple[str, list[Step]]:
    """The text of a message, and the calls in it: from text, or a list of `{"type": "text", "text": …}`."""
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise UnusableRowError("not_text", f"{field}: expected text, got {describe_value(content)}")
    texts: list[str] = []
    calls: list[Step] = []
    for part in content:
        kind = text_of(part, "type")
        if kind in ("text", "tool_call"):
            text = text_of(part, "value" if part.get("text") is None and "value" in part else "text")
            texts.append(text) if kind == "text" else calls.append(Step("call", text, id=_id_in(part, "id")))
        elif kind != "reasoning":
            raise UnusableRowError("not_text", f"{field} of type {kind[:40]!r}: expected text")
    return "".join(texts), calls


def _check_text(value: Any, column: str) -> str:
    """A text. Raises UnusableRowError for null and all else that is none."""
    if not isinstance(value, str):
        raise UnusableRowError("not_text", f"{column}: expected text, got {describe_value(value)}")
    return value


def _id_in(entry: Mapping[str, Any], key: str) -> str | None:
    """The id of a call; None where there is none, or an empty one."""
    value = entry.get(key)
    return str(value) if isinstance(value, str | int) and value != "" else None


def _tool_calls(message: Mapping[str, Any]) -> list[Step]:
    """The calls in OpenAI's `tool_calls`, or in the older `function_call`."""
    calls = message.get("tool_calls") or [call for call in [message.get("function_call")] if call]
    if not isinstance(calls, list):
        raise UnusableRowError("bad_call", f"tool_calls: expected a list, got {describe_value(calls)}")
    return [Step("call", _call(call), id=_id_in(call, "id")) for call in calls]


def _call(call: Any) -> str:
    """A call as text: the expression of a calculator's, JSON of any other."""
    function: Any = call.get("function", call) if isinstance(call, dict) else None
    name, arguments = text_of(function, "name"), function.get("arguments", "{}")
    values = _parse(arguments, f"the arguments of {name[:40]!r}") if isinstance(arguments, str) else arguments
    expression = values.get("expression") if name == "calculator" and isinstance(values, dict) else None
    if isinstance(expression, str):
        return expression
    return json.dumps({"name": name, "arguments": values}, ensure_ascii=False)


def _tool_names(tools: Any) -> list[str]:
    """The names of tools declared as OpenAI does, in a list or its JSON. Raises UnusableRowError for others."""
    if isinstance(tools, str):
        tools = _parse(tools, "tools") if tools.strip() else []
    if not tools:
        return []
    if not isinstance(tools, list):
        raise UnusableRowError("missing_field", f"tools: expected a list, got {describe_value(tools)}")
    return [text_of(tool.get("function", tool) if isinstance(tool, dict) else tool, "name") for tool in tools]


def _is_trained(message: Mapping[str, Any], field: str | None) -> bool | None:
    """Whether a message is trained; None where it does not say. Raises UnusableRowError unless it is 0 or 1."""
    name = field or next((name for name in TRAIN_FIELDS if name in message), None)
    value = value_at(message, name, None) if name else None
    if value is None:
        return None
    if value not in (0, 1):
        raise UnusableRowError("bad_flag", f"{name}: expected true or false, or 1 or 0, got {value!r:.40}")
    return bool(value)


def _parse(text: str, what: str) -> Any:
    """The value of JSON text. Raises UnusableRowError."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise UnusableRowError("bad_call", f"{what}: not JSON: {error}") from error
