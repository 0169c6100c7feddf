r"""The split patterns: regular expressions that cut text into pieces before it is tokenized.

All are written so that the engines of tiktoken, Oniguruma and Python's `regex` give the same pieces. `cl100k` and
`nanochat` have no possessive quantifiers and no `$`, and give the same pieces as the originals. To add a pattern, add
a line to PATTERNS. These are not checked when used: try a new one as the parameter's value first.

    qwen2   "don't go 2024!\n" -> don|'t| go| |2|0|2|4|!\n
"""

import re
from functools import lru_cache
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
# SmolLM's two steps in one: single digits, and GPT-2's pattern between them
DIGITS_THEN_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
WORDS = r" ?\S+|\s"
CHARACTERS = r"[\s\S]"
ANYTHING = r"[\s\S]+"

PATTERN_SAMPLE = (
    "It's 2024,\r\n\r\n  the CAFÉ'S naïve\u00a0\u3000re\u0301sumé...\t\t中文🙂 ½٣Ⅷ <|x|>\n don't_STOP ſ'ſ\u2028!!  \n "
)
# One character of each Unicode category
CATEGORIES = "\0 !$()+-0A^_a\xa6\xaa\xab\xad\xb2\xbb\u01c5\u02b0\u0300\u0378\u0488\u0903\u16ee\u2028\u2029\ue000"

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

    Raises ValueError if it is neither, and for what `check_pattern` refuses.
    """
    if pattern in PATTERNS:
        return PATTERNS[pattern]
    if re.fullmatch(r"\w*", pattern):
        raise ValueError(f"expected {', '.join(PATTERNS)} or a regular expression")
    pattern = pattern.removesuffix(f"|{CHARACTERS}") + f"|{CHARACTERS}"
    check_pattern(pattern)
    return pattern


@lru_cache
def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that loses text, that the engines disagree about, or that may take very long."""
    if pattern in PATTERNS.values():
        return
    check_expression(pattern)
    pieces = [match[0] for match in regex.finditer(pattern, PATTERN_SAMPLE)]
    if not all(pieces):
        raise ValueError(f"the pattern {pattern!r:.80} matches the empty string, so characters would be lost")
    if "".join(pieces) != PATTERN_SAMPLE or any(not regex.match(pattern, character) for character in CATEGORIES):
        raise ValueError(f"the pattern {pattern!r:.80} does not match every character")
    for name, others in {"tiktoken": _tiktoken_pieces(pattern), "Oniguruma": _oniguruma_pieces(pattern)}.items():
        if others != pieces:
            ways = f"{name} and `regex` split text differently by the pattern {pattern!r:.80}"
            raise ValueError(f"{ways}: use classes such as \\p{{L}}")


def check_expression(pattern: str) -> None:
    """Raise ValueError for an invalid regular expression, or one that takes long on texts hard for backtracking."""
    try:
        compiled = regex.compile(pattern)
        _oniguruma_pieces(pattern)
    except Exception as error:  # tokenizers raises no narrower one
        raise ValueError(f"{pattern!r:.80} is not a regular expression: {error}") from error
    if pattern in {WORDS, CHARACTERS, ANYTHING, *PATTERNS.values(), *map(bounded, PATTERNS.values())}:
        return
    for character, end in product(HARD_CHARACTERS, ("", "!", "\n", "a", "中")):
        try:
            for _ in compiled.finditer(HARD_LENGTH * character + end, timeout=MAX_SECONDS):
                pass
        except TimeoutError as error:
            text = f"{HARD_LENGTH:,} times {character!r} and then {end!r}"
            raise ValueError(
                f"the pattern {pattern!r:.80} takes over {MAX_SECONDS} s to split {text}: repeat fewer things in others"
            ) from error


Pattern = Annotated[str, AfterValidator(resolve), Field(validate_default=True)]


def _tiktoken_pieces(pattern: str) -> list[str]:
    """The pieces of the sample in tiktoken, with every substring of the sample as a token."""
    data = PATTERN_SAMPLE.encode()
    substrings = {data[i:j] for i in range(len(data)) for j in range(i + 2, len(data) + 1)}
    ranks = {token: i for i, token in enumerate([*(bytes([byte]) for byte in range(256)), *sorted(substrings)])}
    encoding = tiktoken.Encoding("sample", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.decode([i]) for i in encoding.encode_ordinary(PATTERN_SAMPLE)]


def _oniguruma_pieces(pattern: str) -> list[str]:
    return [piece for piece, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(PATTERN_SAMPLE)]


def bounded(pattern: str) -> str:
    r"""The pattern with every `+` and `*` limited, so that no piece has over 100 bytes.

    `\p{L}+` becomes `\p{L}{1,22}`; two quantifiers in one alternative share the 22.
    Raises ValueError for a repeated group.
    """
    alternatives: list[list[tuple[str, str, str]]] = [[]]  # of each part: atom, quantifier, and `?` or `+` after that
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
    return "|".join(map(_bounded_alternative, alternatives))


def _bounded_alternative(atoms: list[tuple[str, str, str]]) -> str:
    limit = BOUND // max(1, sum(quantifier in ("+", "*") for _, quantifier, _ in atoms))
    limits = {"+": f"{{1,{limit}}}", "*": f"{{0,{limit}}}"}
    return "".join(f"{atom}{limits.get(quantifier, quantifier)}{suffix}" for atom, quantifier, suffix in atoms)
