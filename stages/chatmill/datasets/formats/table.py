"""Rows of any table, by a mapping that says where the conversation is (chatmill.datasets.formats.mapping)."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from chatmill.datasets.formats.containers import Shortened
from chatmill.datasets.formats.example import (
    Dropped,
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
)
from chatmill.datasets.formats.json_document import parse_json
from chatmill.datasets.formats.mapping import (
    MISSING,
    OPTIONAL,
    OPTIONAL_IN_MESSAGES,
    Columns,
    Speaker,
    TableMapping,
    check_text,
    content_bytes,
    id_in,
    is_trained,
    read_content,
    tool_calls,
    tool_names,
    value_at,
)
from chatmill.datasets.formats.trees import best_path, messages_of

# Texts whose speakers alternate: a list, two lists, or one text with a separator between them.


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def order(first: StepKind) -> tuple[StepKind, StepKind]:
    """The two speakers, in the order in which they begin."""
    return ("user", "assistant") if first == "user" else ("assistant", "user")


def alternating(texts: Sequence[Any], first: StepKind) -> Iterator[Step]:
    """The steps of the texts of two speakers. Raises UnusableRowError for what is no text."""
    for number, text in enumerate(texts):
        yield Step(order(first)[number % 2], check_text(text, f"text {number + 1}"))


def exchanges(questions: Any, answers: Any, columns: Columns) -> Iterator[Step]:
    """The steps of the texts in `columns.prompt`, each before the one of the answer at its place.

    Each is a list, or the only text. Raises UnusableRowError where one has more.
    """
    asked, given = (value if isinstance(value, list) else [value] for value in (questions, answers))
    check_turn_count(len(asked) + len(given))
    if len(asked) != len(given):
        counts = f"{len(asked):,} in {columns.prompt} and {len(given):,} in {columns.answer}"
        raise UnusableRowError("unequal_lists", f"expected as many answers as questions, got {counts}")
    return alternating([text for pair in zip(asked, given, strict=True) for text in pair], "user")


_ABSENT = object()
MARK_START = r"(?:#{1,6} ?)?(\*\*|__|[*_]|)"  # of a turn, whose mark may be a heading of Markdown, or emphasised


class TableReader:
    """Converts rows to turns. `unseen` are the optional columns that no row has had."""

    def __init__(self, mapping: TableMapping) -> None:
        self._mapping, self._columns, self._speakers = mapping, mapping.columns, mapping.speakers()
        self._first: StepKind = mapping.first or "user"
        self._marks: re.Pattern[str] | None = None
        self.unseen = {name: column for name, column in self._columns.named().items() if name in OPTIONAL}
        of_messages = {name: getattr(self._columns, name) for name in OPTIONAL_IN_MESSAGES}
        self.unseen |= {name: column for name, column in of_messages.items() if column is not None}

    def see(self, row: Any) -> None:
        """Take note of the optional columns that a row has, whether it can be converted or not."""
        for name, column in list(self.unseen.items()):
            entries = self._all_messages(row) if name in OPTIONAL_IN_MESSAGES else [row]
            if any(value_at(entry, column, _ABSENT) is not _ABSENT for entry in entries):
                del self.unseen[name]

    def _all_messages(self, row: Any) -> list[Any]:
        lists = [from_json(value) if isinstance(value, str) else value for value in self._values(row)]
        entries = [entry for value in lists if isinstance(value, list) for entry in value]
        return [message for entry in entries for message in (entry if isinstance(entry, list) else [entry])]

    def _values(self, row: Any) -> list[Any]:
        """What a row has in the columns of messages, of a tree all of its messages; None where it has nothing."""
        columns = self._columns
        names = (columns.messages, columns.prompt, columns.response, columns.chosen)
        values = [value_at(row, name, None) for name in names if name is not None]
        return values if columns.replies is None else [messages_of(values[0], columns.replies)]

    def turns(self, row: Any) -> tuple[list[Turn], list[Dropped], list[str]]:
        """The turns of a row, what is left out, and the rules by which it was changed. Raises UnusableRowError."""
        dropped, notes = list[Dropped](), list[str]()
        turns = self._any_turns(row, dropped)
        notes = ["chosen_side"] if self._optional(row, "rejected") is not None else []
        notes += ["null_arguments"] * isinstance(row, Shortened)
        names = tool_names(self._optional(row, "tools"))
        return declare(turns, names) if names else turns, dropped, notes

    def _any_turns(self, row: Any, dropped: list[Dropped]) -> list[Turn]:
        columns = self._columns
        steps = list(self._opening(row))
        if columns.messages is not None:
            steps += self._conversation(value_at(row, columns.messages), dropped)
        else:
            question, value = self._question(row), value_at(row, columns.answer)
            if are_texts(question) or are_texts(value):
                return join_tools([*steps, *exchanges(question, value, columns)])
            steps += self._side(question, str(columns.prompt), "user", dropped)
            answer = self._side(value, columns.answer, "assistant", dropped)
            if columns.chosen is not None and answer and answer[0].kind in ("system", "user"):  # it repeats the prompt
                steps = [] if answer[0].kind == "system" else [step for step in steps if step.kind == "system"]
            steps += answer
        check_turn_count(len(steps))
        return join_tools(steps)

    def extent(self, row: Any) -> Extent:
        """The messages of a row that cannot be converted, and the bytes of their text, as far as they are known."""
        columns, system, values = self._columns, self._optional(row, "system"), self._values(row)
        if columns.messages and isinstance(values[0], str):
            values[0] = from_json(values[0])
        history = self._optional(row, "history")
        values += [pair for pair in history if isinstance(pair, list)] if isinstance(history, list) else []
        messages = [item for value in values for item in (value if isinstance(value, list) else [value])]
        messages += [system] if system else []
        contents = [value_at(item, columns.content, None) if isinstance(item, dict) else item for item in messages]
        texts = [*contents, self._optional(row, "query")]
        return Extent(sum(item is not None for item in messages), sum(map(content_bytes, texts)))

    def group(self, row: Any) -> str | None:
        """What the row has in the column of groups, as text."""
        value = self._optional(row, "group")
        return None if value is None else str(value)

    def check_language(self, row: Any) -> None:
        """Raise UnusableRowError for a row in a language that is left out."""
        wanted = self._mapping.languages
        if wanted is not None and (found := self._optional(row, "language")) not in wanted:
            raise UnusableRowError("language", f"language {found!r:.40}: expected one of {', '.join(wanted)}")

    def _optional(self, row: Any, name: str) -> Any:
        """The value of a column that may be missing; None if it is."""
        column = getattr(self._columns, name)
        return None if column is None else value_at(row, column, None)

    def _text(self, row: Any, name: str) -> str:
        value = self._optional(row, name)
        return "" if value is None else check_text(value, name)

    def _opening(self, row: Any) -> Iterator[Step]:
        if text := self._text(row, "system"):
            yield Step("system", text)
        history = self._optional(row, "history")
        if history not in (None, "") and not isinstance(history, list):
            raise UnusableRowError("missing_field", f"history: expected a list, got {describe_value(history)}")
        for pair in history or ():
            if not isinstance(pair, list) or len(pair) != 2:
                raise UnusableRowError("missing_field", f"history: expected pairs of texts, got {describe_value(pair)}")
            yield Step("user", check_text(pair[0], "history"))
            yield Step("assistant", check_text(pair[1], "history"))

    def _question(self, row: Any) -> Any:
        column = str(self._columns.prompt)
        prompt, query = value_at(row, column), self._text(row, "query")
        return f"{check_text(prompt, column)}\n\n{query}" if query else prompt

    def _side(self, value: Any, column: str, speaker: StepKind, dropped: list[Dropped]) -> list[Step]:
        """The steps of a prompt or an answer, which is a text, a message or a list of messages."""
        if isinstance(value, list | dict):
            return list(self._messages(value if isinstance(value, list) else [value], dropped))
        return [Step(speaker, check_text(value, column))]

    def _conversation(self, value: Any, dropped: list[Dropped]) -> Iterator[Step]:
        if self._columns.replies is not None:
            value, others = best_path(value, self._columns)
            dropped += others
        if isinstance(value, str) and self._mapping.turn_separator:
            texts = [text.strip() for text in split_turns(value, self._mapping.turn_separator)]
            return alternating(texts if texts[-1] else texts[:-1], self._first)
        if isinstance(value, str):
            value = from_json(value)
        if isinstance(value, str):
            return self._marked(value, dropped)
        if not isinstance(value, list):
            column = self._columns.messages
            raise UnusableRowError("missing_field", f"{column}: expected a list or a text, got {describe_value(value)}")
        check_turn_count(len(value))
        if are_texts(value):
            return alternating(value, self._first)
        if value and all(isinstance(item, list) for item in value):
            value = [message for item in value for message in item]
        return self._messages(value, dropped)

    def _messages(self, messages: Sequence[Any], dropped: list[Dropped]) -> Iterator[Step]:
        columns, unnamed = self._columns, list[str]()
        for message in messages:
            name = _name(value_at(message, columns.role), columns.role)
            try:
                kind, calls = self._kind(name, unnamed), tool_calls(message)
            except UnknownRoleError as error:
                raise UnknownRoleError(*self._unknown(messages)) from error
            content = value_at(message, columns.content, None if calls else MISSING)
            text, inline = ("", []) if content is None and calls else read_content(content, field=columns.content)
            if kind is None:
                dropped.append(Dropped("ignored_role", Extent(1, num_bytes(text)), f"{name[:40]!r}: {text[:60]!r}"))
                continue
            train, calls = is_trained(message, columns.train), inline + calls
            if text or not calls:
                yield Step(kind, text, 1, train, id_in(message, "tool_call_id"))
            for number, call in enumerate(calls):
                yield Step("call", call.text, int(not text and not number), train, call.id)

    def _marked(self, text: str, dropped: list[Dropped]) -> Iterator[Step]:
        """The turns of a text, each after the name of its speaker and a colon at the start of a line."""
        if self._marks is None:
            names = "|".join(re.escape(name) for name in sorted(self._mapping.marks(), key=len, reverse=True))
            self._marks = re.compile(rf"(?im)^[ \t]*{MARK_START}({names})[ \t]*(?:\1[ \t]*:|:\1)[ \t]?")
        pieces = self._marks.split(text)
        if pieces[0].strip() or len(pieces) == 1:
            raise UnusableRowError("no_marker", f"expected the name of a speaker and a colon, not {text[:40]!r}")
        check_turn_count(len(pieces) // 3)
        unnamed: list[str] = []
        for name, turn in zip(pieces[2::3], pieces[3::3], strict=True):
            content = turn.strip("\n")
            if (kind := self._kind(name, unnamed)) is None:
                dropped.append(Dropped("ignored_role", Extent(1, num_bytes(content)), f"{name!r}: {content[:60]!r}"))
            else:
                yield Step(kind, content)

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
        speaker: Speaker | None = self._speakers.get(name.strip().lower())
        if speaker is None:
            if name not in unnamed:
                unnamed.append(name)
            if self._mapping.first is None or len(unnamed) > 2:
                raise UnknownRoleError(name)
            return order(self._first)[unnamed.index(name)]
        return None if speaker == "ignore" else speaker


class UnknownRoleError(UnusableRowError):
    """Raised for speakers whom no rule maps."""

    def __init__(self, *names: str) -> None:
        self.names = [name[:40] for name in names[:10]]
        unknown = f"unknown role{'s' * (len(names) > 1)} {', '.join(map(repr, self.names))}"
        super().__init__("unknown_role", f"{unknown}: add {'them' if len(names) > 1 else 'it'} to roles")


def from_json(text: str) -> Any:
    """The list that a text holds as JSON, as cells of a CSV file do, or else the text."""
    try:
        return parse_json(text) if text.lstrip().startswith("[") else text
    except ValueError:
        return text


def _name(value: Any, column: str) -> str:
    """The name of a speaker, who may have a number instead, or be the one of whom something is true."""
    return str(value).lower() if isinstance(value, int) else check_text(value, column)


def reader_of(**columns: str) -> TableReader:
    return TableReader(TableMapping(columns=Columns.model_validate(columns)))
