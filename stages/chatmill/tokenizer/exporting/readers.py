r"""The readers of each format that are known to give other ids than the tokenizer, with the reason and a text.

They were compared by tests/benchmarks/readers.py: transformers 5.23, transformers.js 4.3, ONNX Runtime GenAI 0.18,
js-tiktoken 1.0, tiktoken 0.14, sentencepiece 0.2 and the algorithms of llama2.c and qwen3.c. To add a reader, add a
rule to RULES.

    {"js-tiktoken": [{"reason": "for its pattern, U+FEFF is a space, and U+0085 is none", "example": "the\ufeff"}]}
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.formats.validation import ReferenceEncoder
from chatmill.tokenizer.vocabulary.patterns import ANYTHING, CHARACTERS, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.preprocessing import (
    METASPACE,
)
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, byte_pair_merge

ExportFormat = Literal["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]


Encode = Callable[[str], list[int]]
# From the encoder of pieces: a text with other ids; "" if nothing loads, None if none is known
Find = Callable[[Vocabulary, Encode], str | None]

LOADED_BY_GENAI = tuple(PATTERNS[name] for name in ("qwen2", "llama3", "gpt2", "cl100k", "o200k"))
LLAMA_BYTES = (3, 259)  # the ids of Llama 2's bytes
MOST_WORDS = 40  # of the vocabulary, in the texts that are tried
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ASCII_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_ASCII_SPACES = r"\t-\r\x20"
SPACES = _ASCII_SPACES + r"\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_ODD = ("\x85", "\ufeff", "\u3000", "\u00a0", "\u0301", "'ſ")
_UNKNOWN = ("🙂", *map(chr, range(0x2500, 0x2580)))  # characters that few vocabularies have


class Rule(NamedTuple):
    """Readers of a format that differ for the same reason."""

    readers: tuple[str, ...]
    format: ExportFormat
    reason: str
    find: Find


def add_readers(written: Mapping[ExportFormat, dict[str, Any]], vocabulary: Vocabulary) -> None:
    """Add to what was written of each format the readers of its files that differ; nothing where none is known."""
    encode_piece = ReferenceEncoder(replace(vocabulary, pattern=ANYTHING)).encode
    for format, entry in written.items():
        if "files" in entry and (readers := _readers(format, vocabulary, encode_piece)):
            entry["readers"] = readers


def _readers(format: ExportFormat, vocabulary: Vocabulary, encode_piece: Encode) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for rule in RULES:
        example = rule.find(vocabulary, encode_piece) if rule.format == format else None
        if example is not None:
            difference = {"reason": rule.reason} | ({"example": example} if example else {})
            for differences in (found.setdefault(reader, []) for reader in rule.readers):
                if all("example" in each for each in differences):  # the reader loads the file
                    differences.append(difference)
    return found


def _control_name(vocabulary: Vocabulary, _: Encode) -> str | None:
    return next(iter(vocabulary.special), None)


def _metaspace(vocabulary: Vocabulary, _: Encode) -> str | None:
    return METASPACE if vocabulary.spelling == "marked" and vocabulary.steps is None else None


def _character_without_token(vocabulary: Vocabulary, _: Encode) -> str | None:
    if vocabulary.algorithm != "viterbi" or Kind.FALLBACK not in vocabulary.kinds:
        return None
    tokens = set(vocabulary.tokens)
    return next((char for char in _UNKNOWN if char.encode() not in tokens), None)


def _zero_byte(vocabulary: Vocabulary, _: Encode) -> str | None:
    return "a\0b" if vocabulary.lossless else None


def _characters_in_genai(vocabulary: Vocabulary, _: Encode) -> str | None:
    return "é" if vocabulary.pattern == CHARACTERS and _has_long_tokens(vocabulary) else None


def _unigram_in_genai(vocabulary: Vocabulary, _: Encode) -> str | None:
    return "" if vocabulary.algorithm == "viterbi" else None


def _pattern_in_genai(vocabulary: Vocabulary, _: Encode) -> str | None:
    known = (*LOADED_BY_GENAI, CHARACTERS, WORDS, None)
    unknown = vocabulary.pattern not in known and vocabulary.steps is None
    return "" if unknown and _has_long_tokens(vocabulary) else None


def _order_in_genai(vocabulary: Vocabulary, _: Encode) -> str | None:
    if _metaspace(vocabulary, _) is None or vocabulary.algorithm != "merge":
        return None
    tokens = set(vocabulary.tokens)
    return next((text for text in (f" {digit}" for digit in range(10)) if text.encode() in tokens), None)


def _no_modifiers(vocabulary: Vocabulary, _: Encode) -> str | None:
    return "a" if "(?i:" in (vocabulary.pattern or "") else None


def _with_pattern(
    vocabulary: Vocabulary, encode_piece: Encode, *, change: Callable[[str], str], of: tuple[str, ...] = ()
) -> str | None:
    """A text that a pattern splits otherwise as a reader understands it; `of` are the patterns that it takes so."""
    pattern = vocabulary.pattern
    if pattern is None or vocabulary.steps is not None or (of and pattern not in of) or change(pattern) == pattern:
        return None
    encode, other = (_split_first(each, encode_piece) for each in (pattern, change(pattern)))
    return _differing(encode, other, _odd_texts(vocabulary))


def _split_first(pattern: str, encode_piece: Encode) -> Encode:
    split = Split(Regex(pattern), "removed", invert=True)
    return lambda text: [i for piece, _ in split.pre_tokenize_str(text) for i in encode_piece(piece)]


def with_spaces(characters: str, pattern: str) -> str:
    r"""The pattern where `\s` stands for these characters, and `\S` for all others; both may be inside of a class."""
    classes = {r"\s": f"[{characters}]", r"\S": f"[^{characters}]"}
    return re.sub(r"\\.", lambda escape: classes.get(escape[0], escape[0]), pattern)


def _without_marks(pattern: str) -> str:
    return pattern.replace(r"\p{M}", "")


def _ascii_contractions(pattern: str) -> str:
    return pattern.replace(_CONTRACTION, _ASCII_CONTRACTION)


def _unsplit(vocabulary: Vocabulary, encode_piece: Encode) -> str | None:
    if vocabulary.steps is not None:
        return None
    text_ids = sorted(vocabulary.text_ids, key=lambda i: -vocabulary.scores[i])
    order = {vocabulary.tokens[i]: place for place, i in reversed(list(enumerate(text_ids)))}
    ids = {vocabulary.tokens[i]: i for i in reversed(vocabulary.text_ids)}

    def other(text: str) -> list[int]:
        return [ids.get(part, -1) for part in byte_pair_merge(text.encode(), order)]

    words = list(_words(vocabulary))
    texts = (form.format(word) for form in ("{}", "a  {}", "{0}  {0}", "{0}'{0}", "{0}.{0}") for word in words)
    encode = _split_first(vocabulary.pattern or ANYTHING, encode_piece)
    return _differing(encode, other, ["12345678", "é", "...", *_long_characters(vocabulary), *texts])


def _long_characters(vocabulary: Vocabulary) -> Iterator[str]:
    """Characters of three or four bytes that are a token, which two bytes may not be merged into."""
    tokens = (vocabulary.tokens[i] for i in vocabulary.text_ids)
    texts = (token.decode(errors="ignore") for token in tokens if 2 < len(token) < 5)
    return islice((text for text in texts if len(text) == 1), MOST_WORDS)


def _differing(encode: Encode, other: Encode, texts: Iterable[str]) -> str | None:
    return next((text for text in texts if encode(text) != other(text)), None)


def _odd_texts(vocabulary: Vocabulary) -> Iterator[str]:
    words = [*_words(vocabulary), *"aeiost"]
    for odd in _ODD:
        yield from (f"{odd} ", f" {odd}", f"  {odd}", f"{odd}'s")
        yield from (f"{word}{odd}" for word in words)
        yield from (f"{odd}{word}" for word in words)
        yield from (f"{odd}'{word}" for word in words)


def _words(vocabulary: Vocabulary) -> Iterator[str]:
    texts = (vocabulary.tokens[i].decode(errors="ignore").strip() for i in vocabulary.text_ids)
    return islice((text for text in texts if len(text) > 1), MOST_WORDS)


def _has_long_tokens(vocabulary: Vocabulary) -> bool:
    return any(len(vocabulary.tokens[i]) > 1 for i in vocabulary.text_ids)


def _other_than_llama(vocabulary: Vocabulary, _: Encode) -> str | None:
    return None if set(vocabulary.kinds[slice(*LLAMA_BYTES)]) == {Kind.FALLBACK} else "a"


_JSON_READERS = ("tokenizers", "transformers", "transformers.js", "ONNX Runtime GenAI")
_NO_MARKS = partial(_with_pattern, change=_without_marks, of=(PATTERNS["o200k"],))
_NO_NEXT_LINE = partial(_with_pattern, change=partial(with_spaces, SPACES), of=LOADED_BY_GENAI)
RULES = (
    Rule(("ONNX Runtime GenAI",), "huggingface", "it does not load Unigram", _unigram_in_genai),
    Rule(
        ("ONNX Runtime GenAI",),
        "huggingface",
        "it is known to load only the split patterns named qwen2, llama3, gpt2, cl100k and o200k",
        _pattern_in_genai,
    ),
    Rule(_JSON_READERS, "huggingface", "a control token's name in text becomes the token: escape it", _control_name),
    Rule(_JSON_READERS, "huggingface", "U+2581 in text becomes a space", _metaspace),
    Rule(
        ("transformers.js",),
        "huggingface",
        "its Unigram has no byte fallback: a character without a token becomes one unknown token",
        _character_without_token,
    ),
    Rule(
        ("transformers.js",),
        "huggingface",
        "its contractions are of ASCII letters, and 'ſ is none",
        partial(_with_pattern, change=_ascii_contractions),
    ),
    Rule(("ONNX Runtime GenAI",), "huggingface", "it ends a text at U+0000", _zero_byte),
    Rule(("ONNX Runtime GenAI",), "huggingface", "its split into characters is for ASCII only", _characters_in_genai),
    Rule(("ONNX Runtime GenAI",), "huggingface", "it merges some pairs in another order", _order_in_genai),
    Rule(("ONNX Runtime GenAI",), "huggingface", "for its pattern, U+0085 is no space", _NO_NEXT_LINE),
    Rule(
        ("ONNX Runtime GenAI",),
        "huggingface",
        "for its pattern, only ASCII spaces are spaces",
        partial(_with_pattern, change=partial(with_spaces, _ASCII_SPACES), of=(WORDS,)),
    ),
    Rule(("ONNX Runtime GenAI",), "huggingface", "for its pattern, combining marks are no letters", _NO_MARKS),
    Rule(
        ("js-tiktoken",),
        "tiktoken",
        "it does not load a pattern with (?i: in a JavaScript without such groups, as Node.js 20; Node.js 24 has them",
        _no_modifiers,
    ),
    Rule(
        ("js-tiktoken",),
        "tiktoken",
        "for its pattern, U+FEFF is a space, and U+0085 is none",
        partial(_with_pattern, change=partial(with_spaces, SPACES + r"\x{feff}")),
    ),
    Rule(("sentencepiece",), "sentencepiece", "U+2581 in text becomes a space", _metaspace),
    Rule(("qwen3.c",), "binary", "it ends a text at U+0000", _zero_byte),
    Rule(("qwen3.c",), "binary", "a control token's name in text becomes the token: escape it", _control_name),
    Rule(("qwen3.c",), "binary", "it merges by score without splitting the text first", _unsplit),
    Rule(
        ("llama2.c",),
        "llama2c",
        "it puts a space before a text, does not split it, and expects Llama 2's ids of bytes",
        _other_than_llama,
    ),
)
