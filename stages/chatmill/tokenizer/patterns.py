r"""The regular expressions that cut text into pieces before it becomes tokens.

All are written so that tiktoken's, Oniguruma's and Python's `regex` engine give the same pieces. `qwen2`, `llama3` and
`gpt2` load in every runtime. `cl100k` and `nanochat` are spelt without possessive quantifiers and `\z`: same pieces.

    qwen2   "don't go 2024!\n" -> don|'t| go| |2|0|2|4|!\n
"""

import re

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


def resolve(pattern: str) -> str:
    """The expression of that name, or the expression itself, completed so that it leaves no character out."""
    if pattern in PATTERNS:
        return PATTERNS[pattern]
    if re.fullmatch(r"\w*", pattern):
        raise ValueError(f"no pattern is called {pattern!r}: expected {', '.join(PATTERNS)} or a regular expression")
    return pattern if pattern.endswith(f"|{CHARACTERS}") else f"{pattern}|{CHARACTERS}"
