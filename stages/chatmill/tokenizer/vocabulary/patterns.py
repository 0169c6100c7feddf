r"""The split patterns: regular expressions that cut text into pieces before it is tokenized.

All are written so that the engines of tiktoken, Oniguruma and Python's `regex` give the same pieces; how other runtimes
read them says chatmill.tokenizer.exporting.readers. `cl100k` and `nanochat` are written without possessive quantifiers
and `$`, and give the same pieces as the originals. To add a pattern, add a line to PATTERNS. Patterns there are not
checked when used: to check an expression, use it as the parameter's value first. It is refused if it takes
long on texts that are hard for backtracking (check_time).

    qwen2   "don't go 2024!\n" -> don|'t| go| |2|0|2|4|!\n
"""

import re
from itertools import product
from typing import Annotated

import regex
import tiktoken
from pydantic import AfterValidator, Field
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

PATTERNS = {
    "qwen2": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}",
    "llama3": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "nanochat": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,2}}|{_SYMBOLS}|{_SPACES}",
    "cl100k": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s+(?![\s\S])|{_SPACES}",
    "o200k": rf"{_HEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_HEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
}
WORDS = r" ?\S+|\s"
CHARACTERS = r"[\s\S]"
ANYTHING = r"[\s\S]+"

PATTERN_SAMPLE = (
    "It's 2024,\r\n\r\n  the CAFÉ'S naïve\u00a0\u3000re\u0301sumé...\t\t中文🙂 ½٣Ⅷ <|x|>\n don't_STOP ſ'ſ\u2028!!  \n "
)

HARD_CHARACTERS = "a1 \n!.-'中"
HARD_LENGTH = 2000
MAX_SECONDS = 0.3  # a harmless pattern takes a few milliseconds

BOUND = 22  # characters of up to four bytes; 12 of the 100 bytes are for the rest of an alternative
_ATOM = re.compile(
    r"(\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\((?:\?(?:[a-z-]*:|<?[=!]|>))?|[^\\])"  # class, group or character
    r"([+*?]|\{[\d,]+\})?([+?]?)",
    re.DOTALL,
)


def resolve(pattern: str) -> str:
    """The pattern of that name, or the expression itself, extended so that it matches every character.

    Raises ValueError if it is neither, if it may take very long, or if the engines disagree about it.
    """
    if pattern in PATTERNS:
        return PATTERNS[pattern]
    if re.fullmatch(r"\w*", pattern):
        raise ValueError(f"expected {', '.join(PATTERNS)} or a regular expression")
    pattern = pattern.removesuffix(f"|{CHARACTERS}") + f"|{CHARACTERS}"
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    check_time(pattern)
    try:
        pieces = [match[0] for match in regex.finditer(pattern, PATTERN_SAMPLE)]
        others = {"tiktoken": tiktoken_pretokens, "Oniguruma": oniguruma_pretokens} if all(pieces) else {}
        differing = [name for name, cut in others.items() if cut(pattern) != pieces]
    except Exception as error:  # tokenizers raises no narrower one
        raise ValueError(f"not a regular expression: {error}") from error
    if not all(pieces):
        raise ValueError("it matches the empty string, so characters would be lost")
    if differing:
        raise ValueError(f"{differing[0]} and `regex` split text differently by it: use classes such as \\p{{L}}")
    return pattern


def check_time(pattern: str) -> None:
    """Raise ValueError if the pattern takes over MAX_SECONDS on one of a few texts that are hard for backtracking."""
    compiled = regex.compile(pattern)
    for character, end in product(HARD_CHARACTERS, ("", "!", "\n", "a", "中")):
        try:
            for _ in compiled.finditer(HARD_LENGTH * character + end, timeout=MAX_SECONDS):
                pass
        except TimeoutError as error:
            text = f"{HARD_LENGTH:,} times {character!r} and then {end!r}"
            raise ValueError(
                f"it takes over {MAX_SECONDS} s to split {text}: repeat fewer things within others"
            ) from error


def known_patterns() -> set[str]:
    """The expressions that need no check."""
    return {WORDS, CHARACTERS, ANYTHING, *PATTERNS.values(), *map(bounded, PATTERNS.values())}


Pattern = Annotated[str, AfterValidator(resolve), Field(validate_default=True)]


def tiktoken_pretokens(pattern: str) -> list[str]:
    """The pieces of the sample in tiktoken, with every substring of the sample as a token."""
    data = PATTERN_SAMPLE.encode()
    substrings = {data[i:j] for i in range(len(data)) for j in range(i + 2, len(data) + 1)}
    ranks = {token: i for i, token in enumerate([*(bytes([byte]) for byte in range(256)), *sorted(substrings)])}
    encoding = tiktoken.Encoding("sample", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.decode([i]) for i in encoding.encode_ordinary(PATTERN_SAMPLE)]


def oniguruma_pretokens(pattern: str) -> list[str]:
    """The pieces of the sample in `tokenizers`."""
    return [piece for piece, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(PATTERN_SAMPLE)]


def bounded(pattern: str) -> str:
    r"""The pattern with every `+` and `*` limited, so that no piece has over 100 bytes.

    `\p{L}+` becomes `\p{L}{1,22}`; two quantifiers in one alternative share the 22.
    Raises ValueError for a repeated group.
    """
    return "|".join(map(_bounded_alternative, _alternatives(pattern)))


def unbounded_atoms(pattern: str) -> list[list[str]]:
    """The atoms that each alternative repeats without limit. Raises ValueError for a repeated group."""
    return [
        [atom for atom, quantifier, _ in atoms if quantifier in ("+", "*") or quantifier.endswith(",}")]
        for atoms in _alternatives(pattern)
    ]


def _alternatives(pattern: str) -> list[list[tuple[str, str, str]]]:
    """The parts of each alternative: atom, quantifier, and `?` or `+` if that is lazy or possessive."""
    alternatives: list[list[tuple[str, str, str]]] = [[]]
    depth = 0
    for match in _ATOM.finditer(pattern):
        atom, quantifier, suffix = (group or "" for group in match.groups())
        depth += atom.startswith("(") - (atom == ")")
        if atom == ")" and quantifier not in ("", "?"):
            raise ValueError(f"{pattern!r} repeats a group with {quantifier!r}: repeat single characters instead")
        if atom == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append((atom, quantifier, suffix))
    return alternatives


def _bounded_alternative(atoms: list[tuple[str, str, str]]) -> str:
    limit = BOUND // max(1, sum(quantifier in ("+", "*") for _, quantifier, _ in atoms))
    limits = {"+": f"{{1,{limit}}}", "*": f"{{0,{limit}}}"}
    return "".join(f"{atom}{limits.get(quantifier, quantifier)}{suffix}" for atom, quantifier, suffix in atoms)
