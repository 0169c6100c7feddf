"""Repairs conversations so that speakers take turns, counts what became of their messages, and has the parameters."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

from chatmill.conversation import Message, Part, check_turns
from chatmill.datasets.formats.chat_logs import LOGS
from chatmill.datasets.formats.example import Dropped, Extent, Reject, Turn, extent_of, join_texts, num_bytes
from chatmill.datasets.formats.mapping import Columns, Roles, TableMapping
from chatmill.datasets.split import SplitName
from chatmill.personal_data import redacted
from chatmill.pipeline.params_file import Fraction, NonNegativeInt, PositiveInt

# The parameters of a dataset: an entry of the section prepare of params.yaml; data/README.md describes each.


class SourceParameters(BaseModel, extra="forbid", frozen=True):
    """Where a dataset is, what it looks like, and how much of it is read."""

    path: Path  # a file or a folder
    format: str
    files: str | list[str] = "*"  # patterns of the files in a folder
    columns: Columns | None = None
    roles: Roles | None = None
    first: Literal["user", "assistant"] | None = None
    turn_separator: Annotated[str, Field(min_length=1)] | None = None
    languages: list[str] | None = None
    assistant_first: Literal["drop", "keep"] = "drop"
    same_role: Literal["join", "reject"] = "join"
    join_with: str = "\n\n"
    mask_history: bool = False
    redact: bool = False  # personal data is replaced by stand-ins
    limit: PositiveInt | None = None
    seed: NonNegativeInt = 0
    max_reject_rate: Fraction = 0.05  # of 20 published sets read as they should be, none had more than 0.016
    side: SplitName | None = None
    near_duplicates: Literal["across", "within", "off"] | None = None  # mix reads it

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name in ("roles", "first", "turn_separator", "languages"):
            is_log = name == "roles" and self.format in LOGS
            if getattr(self, name) and self.columns is None and not is_log:
                raise ValueError(f"{name} needs columns, which the format table has")
        if self.languages is not None and self.columns is not None and self.columns.language is None:
            raise ValueError("languages needs columns.language")
        return self

    @property
    def patterns(self) -> list[str]:
        return [self.files] if isinstance(self.files, str) else self.files

    @property
    def mapping(self) -> TableMapping | None:
        return None if self.columns is None else TableMapping.model_validate(self, from_attributes=True)


# Counts what became of the messages of a dataset: read = kept + rejected, for messages and for bytes of their text.


class Tally:
    """The messages and bytes of a dataset by what became of them, and its conversations by the rules of their repair.

    What was read is counted before the repair, so that nothing can get lost in it.
    """

    def __init__(self) -> None:
        self._counts = Counter[str](), Counter[str]()  # messages, bytes: `read`, `kept`, and by reason of a reject
        self._repaired = Counter[str]()
        self.records = 0
        self.tools = Counter[str]()  # records that declare them
        self.reasons = Counter[str]()  # of entries that are rejected as a whole
        self.first = dict[str, Reject]()  # of each reason

    def count(self, what: str, extent: Extent) -> None:
        for counts, number in zip(self._counts, extent, strict=True):
            counts[what] += number

    def keep(self, extent: Extent, rules: Iterable[str], tools: Iterable[str] = ()) -> None:
        self.count("kept", extent)
        self.records += 1
        self._repaired.update(rules)
        self.tools.update(tools)

    def reject(self, reject: Reject) -> None:
        self.count(reject.reason, Extent(reject.messages, reject.bytes))
        self.reasons.update([] if reject.part else [reject.reason])
        self.first.setdefault(reject.reason, reject)

    def add(self, later: "Tally") -> None:
        counters = (*self._counts, self._repaired, self.tools, self.reasons)
        for counts, more in zip(counters, (*later._counts, later._repaired, later.tools, later.reasons), strict=True):
            counts.update(more)
        self.records += later.records
        self.first = later.first | self.first

    def content(self) -> dict[str, Any]:
        """The counts, as `messages`, `bytes` and `repaired`."""
        result: dict[str, Any] = {}
        for name, counts in zip(Extent._fields, self._counts, strict=True):
            read, kept = counts["read"], counts["kept"]
            rejected = {reason: count for reason, count in sorted(counts.items()) if reason not in ("read", "kept")}
            assert read == kept + sum(rejected.values()), f"{name}: {counts}"
            result[name] = {"read": read, "kept": kept, "rejected": rejected}
        return result | {"repaired": dict(sorted(self._repaired.items()))}


# Repairs conversations by rule so that the user and the assistant take turns; what is left out is counted.


class Repaired(NamedTuple):
    """A conversation after its repair, what was left out, and the names of the rules that changed it."""

    turns: list[Turn]
    dropped: list[Dropped]
    rules: list[str]

    def drop(self, turns: Iterable[Turn], reason: str) -> None:
        for turn in turns:
            detail = f"{turn.message.role}: {turn.message.text[:60]!r}"
            self.dropped.append(Dropped(reason, extent_of([turn]), detail))

    def note(self, rule: str) -> None:
        if rule not in self.rules:
            self.rules.append(rule)


def repair(turns: list[Turn], parameters: SourceParameters) -> Repaired:
    """The repaired conversation; where no rule applies, its turns are the same list."""
    if _is_regular(turns):
        return Repaired(turns, [], [])
    result = Repaired(list(turns), [], [])
    _end_with_answer(result)
    for step in () if _is_regular(result.turns) else (_system_first, _join_same_role, _assistant_first):
        step(result, parameters)
    return result


def _is_regular(turns: list[Turn]) -> bool:
    try:
        check_turns([turn.message for turn in turns])
    except ValueError:
        return False
    return turns[-1].message.role == "assistant"


def _is_blank(turn: Turn) -> bool:
    return not any(part.text.strip() for part in turn.message.parts)


def _end_with_answer(result: Repaired) -> None:
    """Leave out what follows the last answer; a conversation without answers stays as it is."""
    roles = [turn.message.role for turn in result.turns]
    end = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    if "user" in roles[:end]:
        result.drop(result.turns[end:], "after_last_answer")
        del result.turns[end:]


def _system_first(result: Repaired, parameters: SourceParameters) -> None:
    systems = [turn for turn in result.turns if turn.message.role == "system"]
    others = [turn for turn in result.turns if turn.message.role != "system"]
    is_late = any(turn.message.role == "system" for turn in result.turns[1:])
    result.drop(filter(_is_blank, systems), "empty_system")
    if filled := [turn for turn in systems if not _is_blank(turn)]:
        others.insert(0, _joined(filled, parameters.join_with))
        if is_late:
            result.note("late_system")
    result.turns[:] = others


def _join_same_role(result: Repaired, parameters: SourceParameters) -> None:
    """Join messages of one speaker in a row; blank ones among them are left out."""
    turns: list[Turn] = []
    for _, group in groupby(result.turns, key=lambda turn: turn.message.role):
        run = list(group)
        filled = [turn for turn in run if not _is_blank(turn)] or run[:1]
        result.drop((turn for turn in run if _is_blank(turn) and turn is not filled[0]), "empty_turn")
        if len(filled) > 1 and parameters.same_role == "join" and len({turn.train for turn in filled}) == 1:
            result.note("same_role")
            filled = [_joined(filled, parameters.join_with)]
        turns += filled
    result.turns[:] = turns


def _joined(turns: Sequence[Turn], separator: str) -> Turn:
    """One message of the texts of several messages of one role, with the separator between them."""
    between = [Part("text", separator)] if separator else []
    parts = join_texts(part for number, turn in enumerate(turns) for part in (*between[:number], *turn.message.parts))
    added = sum(turn.added for turn in turns) + num_bytes(separator) * (len(turns) - 1)
    return Turn(Message(turns[0].message.role, parts), sum(turn.messages for turn in turns), turns[0].train, added)


def _assistant_first(result: Repaired, parameters: SourceParameters) -> None:
    """Leave out a message of the assistant before the first one of the user, or keep it untrained."""
    start = 1 if result.turns and result.turns[0].message.role == "system" else 0
    if len(result.turns) <= start or result.turns[start].message.role != "assistant":
        return
    if parameters.assistant_first == "keep" and not _is_blank(result.turns[start]):
        result.turns[start] = result.turns[start]._replace(train=False)
        result.note("assistant_first")
    else:
        result.drop([result.turns.pop(start)], "assistant_first")


def redact(turns: Sequence[Turn], names: Sequence[str]) -> tuple[list[Turn], list[str]]:
    """The conversation with stand-ins for personal data and the names of speakers, and of what, as rules."""
    rules, result = list[str](), list[Turn]()
    for turn in turns:
        parts = tuple(Part(part.kind, redacted(part.text, names, rules)) for part in turn.message.parts)
        changed = turn._replace(message=Message(turn.message.role, parts))
        result.append(changed._replace(added=turn.added + extent_of([changed]).bytes - extent_of([turn]).bytes))
    return result, rules
