"""Tokens that programs search in text before the rest is split, and those that they put around a text.

tokenizer.json lists them with flags. A vocabulary keeps the flags that differ from the defaults, and the
post-processor, as JSON:

    {"added_tokens": {"<|end|>": {"rstrip": true}}, "post_processor": {"type": "RobertaProcessing", …}}

`"assumed": ["<s>", "<mask>"]` names tokens of a file that does not say which are special.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import regex

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_WORD = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")  # as `\w` in Rust
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class AddedToken(NamedTuple):
    """A token that is searched in text, with its flags as in tokenizer.json."""

    content: str
    id: int
    single_word: bool = False  # not found inside a word
    lstrip: bool = False  # takes the whitespace before it
    rstrip: bool = False  # takes the whitespace after it
    normalized: bool = False  # searched in normalised text


def to_special_handling(added: Mapping[str, Mapping[str, bool]], post_processor: Any = None) -> str | None:
    """The text of flags by name and a post-processor; None if there are neither."""
    content: dict[str, Any] = {"added_tokens": {name: flags for name, flags in added.items() if flags}}
    content["post_processor"] = post_processor
    content = {key: value for key, value in content.items() if value}
    return json.dumps(content, sort_keys=True, ensure_ascii=False) if content else None


def flags_of(special_handling: str | None) -> dict[str, dict[str, bool]]:
    """The flags of each token that has any, by name. Raises ValueError if the text is damaged."""
    flags = _content(special_handling).get("added_tokens", {})
    known = {*FLAGS, "special"}
    if not isinstance(flags, dict) or not all(
        isinstance(one, dict) and known.issuperset(one) and all(isinstance(value, bool) for value in one.values())
        for one in flags.values()
    ):
        raise ValueError("the flags of its added tokens are damaged")
    return flags


def post_processor_of(special_handling: str | None) -> dict[str, Any] | None:
    """The post-processor, as in tokenizer.json."""
    found: dict[str, Any] | None = _content(special_handling).get("post_processor")
    return found


def assumed_special(special_handling: str | None) -> list[str]:
    """The tokens that are special by their names alone, as the file does not say which are."""
    return list(_content(special_handling).get("assumed", []))


def without_post_processor(special_handling: str | None) -> str | None:
    """The same without what is put around a text."""
    return to_special_handling(flags_of(special_handling))


def _content(special_handling: str | None) -> dict[str, Any]:
    content = {} if special_handling is None else json.loads(special_handling)
    if not isinstance(content, dict):
        raise ValueError("its special_handling is not an object")
    return content


class AddedTokenSearch:
    """Finds added tokens in text from the left, the longest first, as `tokenizers` does.

    [AddedToken("<mask>", 9, lstrip=True)]    "a <mask> b" -> "a", 9, " b"
    """

    def __init__(self, tokens: Iterable[AddedToken], rewrite: Callable[[str], str] = str) -> None:
        """`rewrite` changes the tokens' texts as the text that is searched was changed, such as normalisation."""
        self._tokens = {rewrite(token.content): token for token in tokens}
        names = sorted(self._tokens, key=len, reverse=True)
        self._expression = regex.compile("|".join(map(regex.escape, names))) if names else None

    def split(self, text: str) -> Iterator[str | int]:
        """The ids of the tokens found, and the texts between them that are not empty."""
        end = 0
        for match in self._expression.finditer(text) if self._expression else ():
            token, (start, stop) = self._tokens[match[0]], match.span()
            if token.single_word and (_WORD.match(text[max(0, start - 1) : start]) or _WORD.match(text, stop)):
                continue
            if token.lstrip:
                start = end + len(text[end:start].rstrip(WHITESPACE))
            if end < start:
                yield text[end:start]
            yield token.id
            end = len(text) - len(text[stop:].lstrip(WHITESPACE)) if token.rstrip else stop
        if end < len(text):
            yield text[end:]


_FLOAT32 = struct.Struct("<f")


def float32(value: float) -> float:
    """The nearest float32, which every format stores exactly."""
    number: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    return number
