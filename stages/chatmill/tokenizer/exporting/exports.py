"""Export a tokenizer to every format that can express it; for the others, find a text with other ids.

formats.json also names the readers of each format that are known to give other ids, with the reason and a text:

    {"js-tiktoken": [{"reason": "for its pattern, U+FEFF is a space, and U+0085 is none", "example": "the\\ufeff"}]}

They were compared by tests/benchmarks/readers.py: transformers 5.23, transformers.js 4.3, ONNX Runtime GenAI 0.18,
js-tiktoken 1.0, tiktoken 0.14, sentencepiece 0.2 and the algorithms of llama2.c and qwen3.c. To add a reader, add what
it does otherwise to `_differences`.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.encoding.backends import Tokenizers, choose_backend, tiktoken_unsupported_reason
from chatmill.tokenizer.formats.binary import greedy_unsupported_reason, write_binary, write_llama2c
from chatmill.tokenizer.formats.tiktoken_files import description_file, write_tiktoken, write_tiktoken_pickle
from chatmill.tokenizer.vocabulary.patterns import ANYTHING, CHARACTERS, PATTERN_SAMPLE, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, NORMALIZATION_SAMPLES, library_of
from chatmill.tokenizer.vocabulary.sentencepiece_model import sentencepiece_unsupported_reason
from chatmill.tokenizer.vocabulary.tokenizer_folder import SENTENCEPIECE_MODEL, write_huggingface
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, byte_pair_merge

ExportFormat = Literal["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
Encode = Callable[[str], list[int]]
EXACT: dict[str, Any] = {"exact": True}
INEXACT: dict[str, Any] = {"exact": False}
METASPACE_REASON = "U+2581 in text becomes a space; chatmill's own files preserve it"
ROUNDING_REASON = "`tokenizers` adds scores in double precision and normalises by graphemes: a few texts differ"
MOST_CANDIDATES = 3000  # words tried in the search for a text that two formats encode differently


def export_all(
    formats: Iterable[ExportFormat], tokenizer_folder: Path, vocabulary: Vocabulary, out: Path
) -> dict[ExportFormat, Any]:
    """Write formats of a tokenizer's folder into `out`, which must not exist; return what `export` gave for each.

    The same is written to `formats.json`, with the bytes that have no token, and that every reader drops from a text.
    """
    out.mkdir(parents=True)
    written = {format: export(format, tokenizer_folder, vocabulary, out) for format in formats}
    add_readers(written, vocabulary)
    if vocabulary.missing_bytes:
        written = {name: one | {"lost_bytes": vocabulary.missing_bytes.hex(" ")} for name, one in written.items()}
    (out / "formats.json").write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_manifest(out, kind="tokenizer", fingerprint=vocabulary.fingerprint)
    return written


def export(format: ExportFormat, tokenizer_folder: Path, vocabulary: Vocabulary, out: Path) -> dict[str, Any]:
    """Write one format of a tokenizer's folder into `out`.

    Returns its files and whether all their readers give the same ids, or why there are none, with an example text.
    """
    match format:
        case "binary":
            write_binary(vocabulary, out / "tokenizer.bin")
            return {"files": ["tokenizer.bin"]} | _as_text(vocabulary) | {"sequential_readers": _sequential(vocabulary)}
        case "llama2c":
            write_llama2c(vocabulary, out / "tokenizer.llama2c.bin")
            return {"files": ["tokenizer.llama2c.bin"]} | _sequential(vocabulary)
        case "tiktoken_pickle" | "tiktoken" if reason := tiktoken_unsupported_reason(vocabulary):
            return _differs(vocabulary, reason, make_rank_encoder(vocabulary, vocabulary.pattern))
        case "tiktoken_pickle":
            write_tiktoken_pickle(vocabulary, out / "tokenizer.pkl")
            # torch stores the file's name in its content: the file is written under its final name
            torch.save(torch.tensor(vocabulary.byte_lengths, dtype=torch.int32), out / "token_bytes.pt")
            return {"files": ["tokenizer.pkl", "token_bytes.pt"]} | _in_tiktoken(vocabulary)
        case "tiktoken":
            file = out / "tokenizer.tiktoken"
            write_tiktoken(vocabulary, file)
            return {"files": [file.name, description_file(file).name]} | _in_tiktoken(vocabulary)
        case "huggingface":
            before = set(out.rglob("*"))
            write_huggingface(tokenizer_folder, out, "chatml")
            files = (file for file in set(out.rglob("*")) - before if file.is_file())
            return {"files": sorted(file.relative_to(out).as_posix() for file in files)} | _huggingface(vocabulary)
        case "sentencepiece":
            if reason := sentencepiece_unsupported_reason(vocabulary):
                return _differs(vocabulary, reason, make_rank_encoder(vocabulary, None))
            shutil.copyfile(tokenizer_folder / SENTENCEPIECE_MODEL, out / SENTENCEPIECE_MODEL)
            inexact = INEXACT | _because(METASPACE_REASON)
            return {"files": [SENTENCEPIECE_MODEL]} | (inexact if vocabulary.steps is None else EXACT)


def _differs(vocabulary: Vocabulary, reason: str, other: Encode) -> dict[str, Any]:
    return _because(reason, differing_text(vocabulary, other))


def _because(reason: str, example: str | None = None) -> dict[str, Any]:
    return {"reason": reason} | ({} if example is None else {"example": example})


def _as_text(vocabulary: Vocabulary) -> dict[str, Any]:
    """What differs if the tokenizer as published finds the name of some token in a text; in chatmill a name is text."""
    flags = vocabulary.flags  # as published: a token that is not "special" there is found in any text
    found = next((name for name in vocabulary.special if flags.get(name, {}).get("special") is False), None)
    if found is None:
        return EXACT
    return INEXACT | _because(f"the original always takes {found!r} in text for the token, which is text here", found)


def _in_tiktoken(vocabulary: Vocabulary) -> dict[str, Any]:
    """What differs if the original strips the blanks around special tokens, as tiktoken does not."""
    for name, flags in vocabulary.flags.items():
        if flag := next((flag for flag in ("lstrip", "rstrip", "single_word") if flags.get(flag)), None):
            return INEXACT | _because(f"tiktoken ignores the {flag} of special tokens", f"a {name} b")
    return _as_text(vocabulary)


def _sequential(vocabulary: Vocabulary) -> dict[str, Any]:
    reason = greedy_unsupported_reason(vocabulary)
    if reason is None:
        return EXACT
    other = make_rank_encoder(vocabulary, vocabulary.pattern, _places_by_score(vocabulary))
    return INEXACT | _differs(vocabulary, reason, other)


def _huggingface(vocabulary: Vocabulary) -> dict[str, Any]:
    steps, added = vocabulary.steps, vocabulary.added_tokens
    if doubled := next((name for name in vocabulary.special if name.encode() in vocabulary.text_tokens), None):
        reason = "a special token has the name of a token of text, and `tokenizers` finds one id"
        return INEXACT | _because(reason, doubled)
    if assumed := vocabulary.handling.get("assumed"):
        reason = f"its files do not say which entries are special tokens: {', '.join(assumed[:3])} are taken for them"
        return INEXACT | _because(reason, assumed[0])
    if vocabulary.spelling != "marked" or (steps is not None and library_of(steps)[0] == "tokenizers"):
        return EXACT
    if steps is None:
        return INEXACT | _because(METASPACE_REASON)
    _, content = library_of(steps)
    plain = not content["charsmap"] and not content["remove_extra_whitespaces"]
    if plain and added:
        reason = "`tokenizers` puts a space before each text between user-defined pieces"
        return INEXACT | _because(reason, f"a{added[0].content}")
    if plain and vocabulary.algorithm == "merge" and Kind.FALLBACK in vocabulary.kinds:
        return EXACT
    return INEXACT | _differs(vocabulary, ROUNDING_REASON, Tokenizers(vocabulary).encode_one)


def make_rank_encoder(
    vocabulary: Vocabulary, pattern: str | None, ranks_by_token: Mapping[bytes, int] | None = None
) -> Encode:
    """The encoder of a reader that only merges bytes, lowest rank first, inside the matches of a pattern."""
    ids = vocabulary.text_tokens
    order = ids if ranks_by_token is None else ranks_by_token

    def encode_piece(piece: str) -> list[int]:
        return [ids.get(part, -1) for part in byte_pair_merge(piece.encode(), order)]

    return _split_first(pattern or ANYTHING, encode_piece)


def differing_text(vocabulary: Vocabulary, other: Encode) -> str | None:
    """A short text for which another encoder gives other ids; None if none was found."""
    encode = choose_backend(vocabulary).encode_one
    return next((text for text in _candidates(vocabulary) if encode(text) != other(text)), None)


def _candidates(vocabulary: Vocabulary) -> Iterator[str]:
    yield from NORMALIZATION_SAMPLES
    yield from PATTERN_SAMPLE.split(" ")
    words = [text for text in dict.fromkeys(_texts(vocabulary)) if text][:MOST_CANDIDATES]
    yield from (f"{word} {other}" for word, other in zip(words, reversed(words), strict=True))
    yield from (word * times for times in (2, 3, 7) for word in words)
    yield PATTERN_SAMPLE


# The readers of each format that give other ids.

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
    """Yield a format, the readers of it that differ, why, and a text with other ids.

    The text is "" if the readers do not load the file, and None if no such text is known.
    """
    pattern, tokens, algorithm = vocabulary.pattern, set(vocabulary.tokens), vocabulary.algorithm
    encode_piece = choose_backend(replace(vocabulary, pattern=vocabulary.pattern and ANYTHING)).encode_one

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


def _places_by_score(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The place of each token that text can produce, the best score first; of equal tokens, that of the first."""
    text_ids = sorted(vocabulary.text_ids, key=lambda i: -vocabulary.scores[i])
    return {vocabulary.tokens[i]: place for place, i in reversed(list(enumerate(text_ids)))}


def _unsplit(vocabulary: Vocabulary, encode_piece: Encode) -> str | None:
    """A text that gets other ids if it is merged by score as a whole, and not piece by piece."""
    if vocabulary.steps is not None:
        return None
    order = _places_by_score(vocabulary)
    ids = {vocabulary.tokens[i]: i for i in reversed(vocabulary.text_ids)}

    # Characters of three or four bytes that are a token, which two bytes may not be merged into
    texts = (token.decode(errors="ignore") for token in vocabulary.text_tokens if 2 < len(token) < 5)
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
    return islice((text for text in _texts(vocabulary) if len(text) > 1), MOST_WORDS)


def _texts(vocabulary: Vocabulary) -> Iterator[str]:
    return (vocabulary.tokens[i].decode(errors="ignore").strip() for i in vocabulary.text_ids)
