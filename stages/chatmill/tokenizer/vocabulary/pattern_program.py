r"""A regular expression as a program for a backtracking engine, one instruction after another.

a+|b    Split(1, 4)  a  Split(-1, 1)  Jump(2)  b        the numbers are relative places
"""

import re
import sys
from dataclasses import dataclass, field
from functools import cache

import regex

MOST_INSTRUCTIONS = 20_000
_TOKEN = re.compile(
    r"(?P<open>\((?:\?(?:[a-z-]*[:)]|<?[=!]|>))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<zero>\\[bBAzZG]|[\^$])"
    r"|(?P<atom>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\x..|\\u.{4}|\\.|[^\\])",
    re.DOTALL,
)
_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(,?)(\d*)\})([+?]?)")
_FLAGS = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL}


@dataclass(eq=False)
class Character:
    """Reads one character of a set."""

    expression: regex.Pattern[str]
    members: frozenset[str] = field(default=frozenset())  # of the characters of a text

    def matches(self, character: str) -> bool:
        """Whether the set has a character."""
        return self.expression.fullmatch(character) is not None

    def example(self) -> str:
        """A character of the set; "" if it is empty."""
        found = self.expression.search(_all_characters())
        return found[0] if found else ""


@dataclass(frozen=True)
class Split:
    """Tries the first place, and if that fails the second."""

    first: int
    second: int


@dataclass(frozen=True)
class Jump:
    """Continues at another place."""

    offset: int


@dataclass(frozen=True)
class Assert:
    """Holds at some positions, such as `$`."""

    expression: regex.Pattern[str]


@dataclass(frozen=True)
class Look:
    """Whether the text after or before the position matches."""

    inner: "Program"
    behind: bool
    wanted: bool


@dataclass(frozen=True)
class Atomic:
    """Matches in the first way only."""

    inner: "Program"


Instruction = Character | Split | Jump | Assert | Look | Atomic
Program = list[Instruction]


def compile(pattern: str) -> Program:
    """The program of a pattern. Raises ValueError for one that is too long, or has parts of an unknown kind."""
    parser = _Parser(pattern)
    program = parser.alternatives(0)
    if parser.place < len(pattern):
        raise ValueError(f"unexpected `)` at character {parser.place}")
    return program


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0

    def alternatives(self, flags: int) -> Program:
        """The program up to the end of the group."""
        program, flags = self._sequence(flags)
        if not self._skip("|"):
            return program
        rest = self.alternatives(flags)
        return [Split(1, len(program) + 2), *program, Jump(len(rest) + 1), *rest]

    def _sequence(self, flags: int) -> tuple[Program, int]:
        program: Program = []
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|)":
            token = _TOKEN.match(self.pattern, self.place)
            if token is None:
                raise ValueError(f"cannot read its character {self.place}")
            self.place = token.end()
            if token["open"] and token["open"].startswith("(?") and token["open"].endswith(")"):
                flags = _changed(flags, token["open"][2:-1])
                continue
            program += self._quantified(self._part(token, flags))
            if len(program) > MOST_INSTRUCTIONS:
                raise ValueError("its repetitions are too many")
        return program, flags

    def _part(self, token: re.Match[str], flags: int) -> Program:
        if token["zero"]:
            return [Assert(regex.compile(token[0], flags))]
        if token["atom"]:
            return [Character(regex.compile(token[0], flags))]
        kind = token["open"][2:]
        inner = self.alternatives(_changed(flags, kind[:-1]) if kind.endswith(":") else flags)
        if not self._skip(")"):
            raise ValueError("a group has no end")
        if kind in ("=", "!", "<=", "<!"):
            return [Look(inner, kind.startswith("<"), kind.endswith("="))]
        return [Atomic(inner)] if kind == ">" else inner

    def _quantified(self, program: Program) -> Program:
        """The program with the quantifier that follows, if there is one."""
        quantifier = _QUANTIFIER.match(self.pattern, self.place)
        if quantifier is None:
            return program
        self.place = quantifier.end()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier[1], (0, 0))
        if quantifier[2]:
            least = int(quantifier[2])
            most = least if not quantifier[3] else int(quantifier[4]) if quantifier[4] else None
        if max(least, most or 0) * len(program) > MOST_INSTRUCTIONS:
            raise ValueError("its repetitions are too many")
        result = _repeated(program, least, most, lazy=quantifier[5] == "?")
        return [Atomic(result)] if quantifier[5] == "+" else result

    def _skip(self, character: str) -> bool:
        found = self.pattern.startswith(character, self.place)
        self.place += found
        return found


def _repeated(program: Program, least: int, most: int | None, *, lazy: bool) -> Program:
    def split(go: int, leave: int) -> Split:
        return Split(leave, go) if lazy else Split(go, leave)

    result = program * least
    if most is None:
        return [*result, split(1, len(program) + 2), *program, Jump(-len(program) - 1)]
    size = len(program) + 1
    for remaining in range(most - least, 0, -1):
        result += [split(1, remaining * size), *program]
    return result


def _changed(flags: int, letters: str) -> int:
    """The flags after `(?i-s:` and the like."""
    added, _, removed = letters.partition("-")
    if unknown := set(added + removed) - set(_FLAGS):
        raise ValueError(f"the flag {min(unknown)!r} is not supported")
    for letter in added:
        flags |= _FLAGS[letter]
    for letter in removed:
        flags &= ~_FLAGS[letter]
    return flags


@cache
def _all_characters() -> str:
    return "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
