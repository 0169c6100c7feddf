"""Export a tokenizer to every format that can express it; for the others, find a text with other ids."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.encoding.backends import ranks_of, tiktoken_unsupported_reason
from chatmill.tokenizer.exporting.readers import ExportFormat, add_readers
from chatmill.tokenizer.formats.binary import greedy_unsupported_reason, write_binary, write_llama2c
from chatmill.tokenizer.formats.tiktoken_files import description_file, write_tiktoken, write_tiktoken_pickle
from chatmill.tokenizer.formats.validation import ReferenceEncoder
from chatmill.tokenizer.vocabulary.patterns import ANYTHING, PATTERN_SAMPLE
from chatmill.tokenizer.vocabulary.preprocessing import NORMALIZATION_SAMPLES, from_tokenizers_json, to_tokenizers_json
from chatmill.tokenizer.vocabulary.sentencepiece_model import sentencepiece_unsupported_reason
from chatmill.tokenizer.vocabulary.tokenizer_folder import SENTENCEPIECE_MODEL, write_huggingface
from chatmill.tokenizer.vocabulary.vocabulary import (
    TEXT_KINDS,
    Kind,
    Vocabulary,
    assumed_special,
    byte_pair_merge,
    flags_of,
)

METASPACE_REASON = "U+2581 in text becomes a space; chatmill's own files preserve it"
ROUNDING_REASON = "`tokenizers` adds scores in double precision and normalises by graphemes: a few texts differ"
MOST_CANDIDATES = 3000  # words tried in the search for a text that two formats encode differently


def export_all(
    formats: Iterable[ExportFormat], tokenizer_folder: Path, vocabulary: Vocabulary, out: Path
) -> dict[ExportFormat, Any]:
    """Write formats of a tokenizer's folder into `out`, which must not exist; return what `export` gave for each.

    The same is written to `formats.json`.
    """
    out.mkdir(parents=True)
    written = {format: export(format, tokenizer_folder, vocabulary, out) for format in formats}
    add_readers(written, vocabulary)
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
            return _written("tokenizer.bin") | _as_text(vocabulary) | {"sequential_readers": _sequential(vocabulary)}
        case "llama2c":
            write_llama2c(vocabulary, out / "tokenizer.llama2c.bin")
            return {"files": ["tokenizer.llama2c.bin"]} | _sequential(vocabulary)
        case "tiktoken_pickle" | "tiktoken" if reason := tiktoken_unsupported_reason(vocabulary):
            return _unsupported(vocabulary, reason, make_rank_encoder(vocabulary, vocabulary.pattern))
        case "tiktoken_pickle":
            write_tiktoken_pickle(vocabulary, out / "tokenizer.pkl")
            write_token_bytes(vocabulary, out / "token_bytes.pt")
            return _written("tokenizer.pkl", "token_bytes.pt") | _flags_in_tiktoken(vocabulary)
        case "tiktoken":
            file = out / "tokenizer.tiktoken"
            write_tiktoken(vocabulary, file)
            return _written(file.name, description_file(file).name) | _flags_in_tiktoken(vocabulary)
        case "huggingface":
            before = set(out.rglob("*"))
            write_huggingface(tokenizer_folder, out, "chatml")
            files = (file for file in set(out.rglob("*")) - before if file.is_file())
            names = sorted(file.relative_to(out).as_posix() for file in files)
            return _written(*names) | _huggingface(vocabulary)
        case "sentencepiece":
            if reason := sentencepiece_unsupported_reason(vocabulary):
                return _unsupported(vocabulary, reason, make_rank_encoder(vocabulary, None))
            shutil.copyfile(tokenizer_folder / SENTENCEPIECE_MODEL, out / SENTENCEPIECE_MODEL)
            return _written(SENTENCEPIECE_MODEL, reason=METASPACE_REASON if vocabulary.steps is None else None)


def _written(*files: str, reason: str | None = None) -> dict[str, Any]:
    return {"files": list(files)} | _exact(reason)


def _exact(reason: str | None = None, example: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"exact": reason is None, "reason": reason, "example": example}
    return {key: value for key, value in entry.items() if value is not None}


def _unsupported(vocabulary: Vocabulary, reason: str, other: Callable[[str], list[int]]) -> dict[str, Any]:
    example = differing_text(vocabulary, other)
    return {"reason": reason} | ({} if example is None else {"example": example})


def _as_text(vocabulary: Vocabulary) -> dict[str, Any]:
    """Whether names of control tokens in text, which chatmill takes for text, are so in the original."""
    if vocabulary.algorithm == "viterbi" and vocabulary.added_tokens:
        example = vocabulary.added_tokens[0].content * 2
        return _exact("a few texts with user-defined pieces differ from SentencePiece's unigram", example)
    flags = flags_of(vocabulary.special_handling)
    found = next((name for name in vocabulary.special if flags.get(name, {}).get("special") is False), None)
    if found is None:
        return {}
    return _exact(f"the original always takes {found!r} in text for the token, which is text here", found)


def _flags_in_tiktoken(vocabulary: Vocabulary) -> dict[str, Any]:
    """Whether tiktoken finds special tokens in text as the original does, which may strip the blanks around them."""
    for name, flags in flags_of(vocabulary.special_handling).items():
        if flag := next((flag for flag in ("lstrip", "rstrip", "single_word") if flags.get(flag)), None):
            return _exact(f"tiktoken ignores the {flag} of special tokens", f"a {name} b")
    return _as_text(vocabulary)


def _sequential(vocabulary: Vocabulary) -> dict[str, Any]:
    reason = greedy_unsupported_reason(vocabulary)
    if reason is None:
        return _exact()
    order = sorted(vocabulary.text_ids, key=lambda i: -vocabulary.scores[i])
    by_score = {vocabulary.tokens[i]: place for place, i in enumerate(order)}
    other = make_rank_encoder(vocabulary, vocabulary.pattern, by_score)
    return {"exact": False} | _unsupported(vocabulary, reason, other)


def _huggingface(vocabulary: Vocabulary) -> dict[str, Any]:
    texts = {vocabulary.tokens[i] for i in vocabulary.text_ids}
    if doubled := next((name for name in vocabulary.special if name.encode() in texts), None):
        return _exact("a special token has the name of a token of text, and `tokenizers` finds one id", doubled)
    if assumed := assumed_special(vocabulary.special_handling):
        reason = f"its files do not say which entries are special tokens: {', '.join(assumed[:3])} are taken for them"
        return _exact(reason, assumed[0])
    if vocabulary.spelling != "marked" or (vocabulary.steps or "").startswith('{"tokenizers"'):
        return _exact()
    if vocabulary.steps is None:
        return _exact(METASPACE_REASON)
    plain = '"charsmap": ""' in vocabulary.steps and '"remove_extra_whitespaces": false' in vocabulary.steps
    if plain and vocabulary.added_tokens:
        example = f"a{vocabulary.added_tokens[0].content}"
        return _exact("`tokenizers` puts a space before each text between user-defined pieces", example)
    if plain and vocabulary.algorithm == "merge" and Kind.FALLBACK in vocabulary.kinds:
        return _exact()
    steps = from_tokenizers_json(to_tokenizers_json(vocabulary.steps))
    other = ReferenceEncoder(replace(vocabulary, steps=steps)).encode
    return {"exact": False} | _unsupported(vocabulary, ROUNDING_REASON, other)


def write_token_bytes(vocabulary: Vocabulary, file: Path) -> None:
    """Write the number of bytes of each token, as nanochat reads it: int32 (V,), 0 for control and unused tokens.

    torch stores the file's name in its content, so the file is written under its final name.
    """
    tokens = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    lengths = [len(token) if kind in TEXT_KINDS else 0 for token, kind in tokens]
    torch.save(torch.tensor(lengths, dtype=torch.int32), file)


def make_rank_encoder(
    vocabulary: Vocabulary, pattern: str | None, ranks_by_token: Mapping[bytes, int] | None = None
) -> Callable[[str], list[int]]:
    """The encoder of a reader that only merges bytes, lowest rank first, inside the matches of a pattern."""
    ids = ranks_of(vocabulary)
    order = ids if ranks_by_token is None else ranks_by_token
    split = Split(Regex(pattern or ANYTHING), "removed", invert=True)

    def encode(text: str) -> list[int]:
        pieces = (piece.encode() for piece, _ in split.pre_tokenize_str(text))
        return [ids.get(part, -1) for piece in pieces for part in byte_pair_merge(piece, order)]

    return encode


def differing_text(vocabulary: Vocabulary, other: Callable[[str], list[int]]) -> str | None:
    """A short text for which another encoder gives other ids; None if none was found."""
    encode = ReferenceEncoder(vocabulary).encode
    return next((text for text in _candidates(vocabulary) if encode(text) != other(text)), None)


def _candidates(vocabulary: Vocabulary) -> Iterator[str]:
    yield from NORMALIZATION_SAMPLES
    yield from PATTERN_SAMPLE.split(" ")
    texts = (vocabulary.tokens[i].decode(errors="ignore").strip() for i in vocabulary.text_ids)
    words = [text for text in dict.fromkeys(texts) if text][:MOST_CANDIDATES]
    yield from (f"{word} {other}" for word, other in zip(words, reversed(words), strict=True))
    yield from (word * times for times in (2, 3, 7) for word in words)
    yield PATTERN_SAMPLE
