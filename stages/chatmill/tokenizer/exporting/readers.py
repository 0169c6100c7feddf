r"""The readers of each format that are known to give other ids than the tokenizer, with the reason and a text.

They were compared by tests/benchmarks/readers.py: transformers 5.23, transformers.js 4.3, ONNX Runtime GenAI 0.18,
js-tiktoken 1.0, tiktoken 0.14, sentencepiece 0.2 and the algorithms of llama2.c and qwen3.c. To add a reader, add what
it does otherwise to `_differences`.

    {"js-tiktoken": [{"reason": "for its pattern, U+FEFF is a space, and U+0085 is none", "example": "the\ufeff"}]}
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.formats.validation import ReferenceEncoder
from chatmill.tokenizer.vocabulary.patterns import ANYTHING, CHARACTERS, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, byte_pair_merge

ExportFormat = Literal["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
Encode = Callable[[str], list[int]]

GENAI = "ONNX Runtime GenAI"
JSON_READERS = ("tokenizers", "transformers", "transformers.js", GENAI)
LOADED_BY_GENAI = tuple(PATTERNS[name] for name in ("qwen2", "llama3", "gpt2", "cl100k", "o200k"))
LLAMA_BYTES = slice(3, 259)  # the ids of Llama 2's bytes
MOST_WORDS = 40  # of the vocabulary, in the texts that are tried
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ASCII_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_ASCII_SPACES = r"\t-\r\x20"
SPACES = _ASCII_SPACES + r"\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_ODD = ("\x85", "\ufeff", "\u3000", "\u00a0", "\u0301", "'ſ")
_UNKNOWN = ("🙂", *map(chr, range(0x2500, 0x2580)))  # characters that few vocabularies have


def add_readers(written: Mapping[ExportFormat, dict[str, Any]], vocabulary: Vocabulary) -> None:
    """Add to what was written of each format the readers of its files that differ; nothing where none is known."""
    for format, readers, reason, example in _differences(vocabulary):
        entry = written.get(format, {})
        if example is None or "files" not in entry:
            continue
        found = entry.setdefault("readers", {})
        for differences in (found.setdefault(reader, []) for reader in readers):
            if all("example" in each for each in differences):  # the reader loads the file
                differences.append({"reason": reason} | ({"example": example} if example else {}))


def _differences(vocabulary: Vocabulary) -> Iterator[tuple[ExportFormat, tuple[str, ...], str, str | None]]:
    """A format, its readers that differ, why, and a text with other ids: "" if nothing loads, None if none is known."""
    pattern, tokens, algorithm = vocabulary.pattern, set(vocabulary.tokens), vocabulary.algorithm
    encode_piece = ReferenceEncoder(replace(vocabulary, pattern=ANYTHING)).encode

    def if_split_as(change: Callable[[str], str], *of: str) -> str | None:
        """A text that a reader splits otherwise, as it changes the pattern; `of` are those it does so with, if any."""
        if pattern is None or vocabulary.steps is not None or (of and pattern not in of) or change(pattern) == pattern:
            return None
        encode, other = (_split_first(each, encode_piece) for each in (pattern, change(pattern)))
        return next((text for text in _odd_texts(vocabulary) if encode(text) != other(text)), None)

    control = next(iter(vocabulary.special), None)
    metaspace = METASPACE if vocabulary.spelling == "marked" and vocabulary.steps is None else None
    yield "huggingface", (GENAI,), "it does not load Unigram", "" if algorithm == "viterbi" else None
    loaded = pattern in (*LOADED_BY_GENAI, CHARACTERS, WORDS, None)
    unloaded = "" if not loaded and vocabulary.steps is None and vocabulary.has_longer_tokens else None
    reason = "it is known to load only the split patterns named qwen2, llama3, gpt2, cl100k and o200k"
    yield "huggingface", (GENAI,), reason, unloaded
    escape = "a control token's name in text becomes the token: escape it"
    yield "huggingface", JSON_READERS, escape, control
    yield "huggingface", JSON_READERS, "U+2581 in text becomes a space", metaspace
    if algorithm == "viterbi" and Kind.FALLBACK in vocabulary.kinds:
        unknown = next((char for char in _UNKNOWN if char.encode() not in tokens), None)
        reason = "its Unigram has no byte fallback: a character without a token becomes one unknown token"
        yield "huggingface", ("transformers.js",), reason, unknown
    contractions = if_split_as(lambda pattern: pattern.replace(_CONTRACTION, _ASCII_CONTRACTION))
    reason = "its contractions are of ASCII letters, and 'ſ is none"
    yield "huggingface", ("transformers.js",), reason, contractions
    zero = "a\0b" if vocabulary.lossless else None
    yield "huggingface", (GENAI,), "it ends a text at U+0000", zero
    characters = "é" if pattern == CHARACTERS and vocabulary.has_longer_tokens else None
    yield "huggingface", (GENAI,), "its split into characters is for ASCII only", characters
    if metaspace and algorithm == "merge":
        digits = (text for text in (f" {digit}" for digit in range(10)) if text.encode() in tokens)
        yield "huggingface", (GENAI,), "it merges some pairs in another order", next(digits, None)
    next_line = if_split_as(lambda pattern: with_spaces(SPACES, pattern), *LOADED_BY_GENAI)
    yield "huggingface", (GENAI,), "for its pattern, U+0085 is no space", next_line
    ascii_spaces = if_split_as(lambda pattern: with_spaces(_ASCII_SPACES, pattern), WORDS)
    yield "huggingface", (GENAI,), "for its pattern, only ASCII spaces are spaces", ascii_spaces
    no_marks = if_split_as(lambda pattern: pattern.replace(r"\p{M}", ""), PATTERNS["o200k"])
    yield "huggingface", (GENAI,), "for its pattern, combining marks are no letters", no_marks
    reason = (
        "it does not load a pattern with (?i: in a JavaScript without such groups, as Node.js 20; Node.js 24 has them"
    )
    yield "tiktoken", ("js-tiktoken",), reason, "a" if "(?i:" in (pattern or "") else None
    js_spaces = if_split_as(lambda pattern: with_spaces(SPACES + r"\x{feff}", pattern))
    yield "tiktoken", ("js-tiktoken",), "for its pattern, U+FEFF is a space, and U+0085 is none", js_spaces
    yield "sentencepiece", ("sentencepiece",), "U+2581 in text becomes a space", metaspace
    yield "binary", ("qwen3.c",), "it ends a text at U+0000", zero
    yield "binary", ("qwen3.c",), escape, control
    unsplit = _unsplit(vocabulary, encode_piece)
    yield "binary", ("qwen3.c",), "it merges by score without splitting the text first", unsplit
    reason = "it puts a space before a text, does not split it, and expects Llama 2's ids of bytes"
    like_llama = set(vocabulary.kinds[LLAMA_BYTES]) == {Kind.FALLBACK}
    yield "llama2c", ("llama2.c",), reason, None if like_llama else "a"


def _split_first(pattern: str, encode_piece: Encode) -> Encode:
    split = Split(Regex(pattern), "removed", invert=True)
    return lambda text: [i for piece, _ in split.pre_tokenize_str(text) for i in encode_piece(piece)]


def with_spaces(characters: str, pattern: str) -> str:
    r"""The pattern where `\s` stands for these characters, and `\S` for all others; both may be inside of a class."""
    classes = {r"\s": f"[{characters}]", r"\S": f"[^{characters}]"}
    return re.sub(r"\\.", lambda escape: classes.get(escape[0], escape[0]), pattern)


def _unsplit(vocabulary: Vocabulary, encode_piece: Encode) -> str | None:
    """A text with other ids where the whole text is merged by score, and not each piece."""
    if vocabulary.steps is not None:
        return None
    text_ids = sorted(vocabulary.text_ids, key=lambda i: -vocabulary.scores[i])
    order = {vocabulary.tokens[i]: place for place, i in reversed(list(enumerate(text_ids)))}
    ids = {vocabulary.tokens[i]: i for i in reversed(vocabulary.text_ids)}

    # Characters of three or four bytes that are a token, which two bytes may not be merged into
    tokens = (vocabulary.tokens[i] for i in vocabulary.text_ids)
    texts = (token.decode(errors="ignore") for token in tokens if 2 < len(token) < 5)
    characters = islice((text for text in texts if len(text) == 1), MOST_WORDS)
    words = list(_words(vocabulary))
    joined = (form.format(word) for form in ("{}", "a  {}", "{0}  {0}", "{0}'{0}", "{0}.{0}") for word in words)
    encode = _split_first(vocabulary.pattern or ANYTHING, encode_piece)
    for text in ("12345678", "é", "...", *characters, *joined):
        if encode(text) != [ids.get(part, -1) for part in byte_pair_merge(text.encode(), order)]:
            return text
    return None


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
