r"""How long a split pattern takes on texts that are made to be hard for it.

A small backtracking engine counts its steps, so no clock decides, and exponential patterns end too. The texts repeat
what the pattern can match: each kind of character, pairs of them, and what leads to each place in the pattern.

    [\s\S]*?x|[\s\S]    on "aaaa…" each character looks for an x up to the end: refused
    \s+(?!\S)|\s+       on "    …a" the second alternative takes all that the first one looked at: accepted
"""

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice, pairwise

from chatmill.tokenizer.vocabulary.pattern_program import Assert, Atomic, Character, Jump, Look, Program, Split, compile

LENGTHS = (24, 96, 384)  # characters of a text
FURTHER = [long - short for short, long in pairwise(LENGTHS)]
MOST_GROWTH = 1 / 3  # of the steps for each character, by each further character; quadratic time gives 1.5
MOST_STEPS = 4000  # for each character
MOST_WORDS, MOST_KINDS = 500, 24
TRUSTED = {r"\s+$"}  # DeepSeek LLM's; quadratic on a run of whitespace that ends inside a line, which its users accept
_SAMPLE = "aA1 \n\r\t.'-_(/«‿^+$中éʰǅ\u0301\u00a0\u2028½٣Ⅷ🙂\x00\u200b\ue000\u0378x!"


class TooSlow(Exception):
    """A match takes more steps than allowed."""


class Engine:
    """Finds the matches of a pattern and counts the steps."""

    def __init__(self, program: Program) -> None:
        self._program, self.steps, self._limit = program, 0, 0

    def steps_for(self, text: str) -> float:
        """The steps for each character to find all matches. Raises TooSlow if they are over MOST_STEPS."""
        for _ in self.matches(text):
            pass
        return self.steps / len(text)

    def matches(self, text: str) -> Iterator[str]:
        """Yield the matches in a text, as `re.findall` finds them."""
        self.steps, self._limit, start = 0, MOST_STEPS * len(text), 0
        while start < len(text):
            end = self._match(self._program, text, start)
            if end is not None:
                yield text[start:end]
            start = max(end or 0, start + 1)

    def _match(self, program: Program, text: str, start: int) -> int | None:
        """The end of the match that begins at `start`, by trying one alternative after another."""
        stack, end = [(0, start)], len(text)
        while stack:
            place, position = stack.pop()
            while place < len(program):
                self.steps += 1
                if self.steps > self._limit:
                    raise TooSlow
                match program[place]:
                    case Character(members=members):
                        if position == end or text[position] not in members:
                            break
                        position += 1
                    case Split(first, second):
                        stack.append((place + second, position))
                        place += first - 1
                    case Jump(offset):
                        place += offset - 1
                    case Assert(expression):
                        if not expression.match(text, position):
                            break
                    case Look(inner, behind, wanted):
                        if self._looks(inner, text, position, behind=behind) != wanted:
                            break
                    case Atomic(inner):
                        after = self._match(inner, text, position)
                        if after is None:
                            break
                        position = after
                place += 1
            else:
                return position
        return None

    def _looks(self, program: Program, text: str, position: int, *, behind: bool) -> bool:
        if not behind:
            return self._match(program, text, position) is not None
        return any(
            self._match(program, text, start) == position for start in range(position, max(-1, position - 32), -1)
        )


def check_time(pattern: str) -> None:
    """Raise ValueError for a pattern that takes more than linear time on some text, or that `compile` cannot read."""
    try:
        text = slow_text(pattern)
    except RecursionError as error:
        raise ValueError("its groups are nested too deeply") from error
    if text is not None:
        raise ValueError(f"it takes very long on some text, such as {text!r:.40}…: its time grows faster than the text")


@lru_cache
def slow_text(pattern: str) -> str | None:
    """A text on which a pattern takes more than linear time; None if none is found. Raises ValueError as `compile`."""
    if pattern in TRUSTED:
        return None
    program = compile(pattern)
    kinds = _kinds(program, pattern)
    engine = Engine(program)
    for word, end in _texts(program, kinds):
        texts = [_repeated(word, length, end) for length in LENGTHS]
        try:
            steps = map(engine.steps_for, texts)  # of a longer text only if those of a shorter one grow
            if all(
                more - few > MOST_GROWTH * further
                for further, (few, more) in zip(FURTHER, pairwise(steps), strict=True)
            ):
                return texts[1]
        except TooSlow:
            return texts[1]
    return None


def _repeated(word: tuple[str, str], length: int, end: str) -> str:
    before, repeated = word
    return before + (repeated * length)[:length] + end


def _kinds(program: Program, pattern: str) -> list[str]:
    """A character of each kind, of which the pattern's atoms tell no two characters apart; sets the atoms' members."""
    atoms = list(characters(program))
    candidates = dict.fromkeys(_SAMPLE + pattern + "".join(atom.example() for atom in atoms))
    kinds: dict[tuple[bool, ...], str] = {}
    for character in candidates:
        kinds.setdefault(tuple(atom.matches(character) for atom in atoms), character)
    chosen = list(kinds.values())
    for atom in atoms:
        atom.members = frozenset(filter(atom.matches, chosen))
    return chosen[:MOST_KINDS]


def characters(program: Program) -> Iterator[Character]:
    """Yield the instructions that read a character."""
    for instruction in program:
        if isinstance(instruction, Character):
            yield instruction
        elif isinstance(instruction, Look | Atomic):
            yield from characters(instruction.inner)


def _texts(program: Program, kinds: list[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield texts as what stands before a repeated word, the word, and the end."""
    for prefix, members in islice(_prefixes(program, ""), MOST_WORDS):
        others = [kind for kind in kinds if kind not in members][:3]
        for member in sorted(members)[:1]:
            yield from ((("", prefix + member), end) for end in ["", *others])
        if prefix:
            yield from (((prefix, member), end) for member in sorted(members)[:4] for end in ["", *others])
    for kind in kinds:
        yield from ((("", kind), end) for end in ["", *kinds])
    for first, second in combinations(kinds, 2):
        yield ("", first + second), ""


def _prefixes(program: Program, before: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield a text that leads to each character of the pattern, and what the character may be."""
    reached, waiting = {0}, deque([(0, before)])
    while waiting:
        place, prefix = waiting.popleft()
        if place >= len(program):
            continue
        match program[place]:
            case Character(members=members):
                yield prefix, members
                following = [(place + 1, prefix + min(members))] if members else []
            case Split(first, second):
                following = [(place + first, prefix), (place + second, prefix)]
            case Jump(offset):
                following = [(place + offset, prefix)]
            case Look(inner) | Atomic(inner):
                yield from _prefixes(inner, prefix)
                following = [(place + 1, prefix), *((place + 1, prefix + text) for text in _whole(inner))]
            case _:
                following = [(place + 1, prefix)]
        for step in following:
            if step[0] not in reached or isinstance(program[place], Look):
                reached.add(step[0])
                waiting.append(step)


def _whole(program: Program) -> list[str]:
    """A text that matches a part of a pattern, if its first way is a sequence of characters."""
    text = ""
    for instruction in program:
        if isinstance(instruction, Character) and instruction.members:
            text += min(instruction.members)
    return [text] if text else []
