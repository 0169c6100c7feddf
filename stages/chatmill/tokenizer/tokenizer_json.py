"""tokenizer.json: the file of Hugging Face's `tokenizers`, which is chatmill's canonical one.

Byte-level types are `Split(pattern) + ByteLevel` before a BPE or WordPiece model; lookup is BPE that ignores its
(absent) merges. SentencePiece types take the text as it is, with spaces as U+2581 and `<0x0A>` for the byte 10. Control
and unused tokens are special added tokens. Only files of these shapes are read; whatever else one asks for is refused.
"""

import json
import re
from pathlib import Path
from typing import Any

from chatmill.tokenizer.patterns import ANYTHING, CHARACTERS, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary import Algorithm, Kind, Pair, Vocabulary, float32, rank_scores

SPACE = "\u2581"
CONTINUATION = "→"  # before WordPiece's continuations; no letter of the byte-level alphabet
UNUSED = "<|unused_"
MAX_PIECE_BYTES = 100  # WordPiece gives a longer piece up

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_ALPHABET = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + place) for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
_BYTES = {letter: byte for byte, letter in _ALPHABET.items()}
Entry = tuple[bytes, Kind]
_LOOKUP_TYPES = {WORDS: "whitespace", CHARACTERS: "char", ANYTHING: "byte"}


def write_tokenizer_json(vocabulary: Vocabulary, file: Path) -> None:
    """Write the file; `read_tokenizer_json` is the inverse."""
    file.write_text(to_json(vocabulary), encoding="utf-8")


def to_json(vocabulary: Vocabulary, *, special: bool = True) -> str:
    """The file's content; without `special` tokens no text can give their ids."""
    byte_level = Kind.FALLBACK not in vocabulary.kinds
    added = [
        {"id": i, "content": token.decode(), "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if special and kind >= Kind.CONTROL
    ]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    content |= _byte_level_steps(vocabulary) if byte_level else _SENTENCEPIECE_STEPS
    content["model"] = _model(vocabulary)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _byte_level_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": vocabulary.pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps = [split, byte_level] if vocabulary.pattern else [byte_level]
    decoder: dict[str, Any] = byte_level
    if vocabulary.algorithm == "wordpiece":
        strip = {"type": "Replace", "pattern": {"String": CONTINUATION}, "content": ""}
        decoder = {"type": "Sequence", "decoders": [strip, byte_level]}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": decoder,
    }


_SENTENCEPIECE_STEPS = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    },
}


def _model(vocabulary: Vocabulary) -> dict[str, Any]:
    pieces = [piece_of(vocabulary, i) for i in range(len(vocabulary.tokens))]
    if vocabulary.algorithm == "viterbi":
        unknown = vocabulary.kinds.index(Kind.UNUSED)
        scored = [list(entry) for entry in zip(pieces, vocabulary.scores, strict=True)]
        return {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": True}
    ids = {piece: i for i, piece in enumerate(pieces) if vocabulary.kinds[i] < Kind.CONTROL}
    if vocabulary.algorithm == "wordpiece":
        limits = {"continuing_subword_prefix": CONTINUATION, "max_input_chars_per_word": MAX_PIECE_BYTES}
        return {"type": "WordPiece", "unk_token": "[UNK]"} | limits | {"vocab": ids}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": Kind.FALLBACK in vocabulary.kinds,
        "ignore_merges": vocabulary.algorithm == "lookup",
        "vocab": ids,
        "merges": [[pieces[left], pieces[right]] for left, right in vocabulary.merges],
    }


def piece_of(vocabulary: Vocabulary, i: int) -> str:
    """How the file spells a token: by the byte-level alphabet, or as SentencePiece does."""
    token, kind = vocabulary.tokens[i], vocabulary.kinds[i]
    if kind >= Kind.CONTROL:
        return token.decode()
    if kind == Kind.FALLBACK:
        return f"<0x{token[0]:02X}>"
    if vocabulary.type == "sentencepiece":
        return token.decode().replace(" ", SPACE)
    letters = "".join(map(_ALPHABET.__getitem__, token))
    return CONTINUATION + letters if kind == Kind.CONTINUATION else letters


def read_tokenizer_json(file: Path, type: str | None = None) -> Vocabulary:
    """The vocabulary in a file of these shapes; its `type` is the one that the shape suggests, unless it is given.

    Every added token becomes a control token. A normaliser to NFC is left out: chatmill encodes text as it is, which is
    the same for text in that form. Raises ValueError for other shapes.
    """
    try:
        return _read(json.loads(file.read_text(encoding="utf-8")), type)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file}: not a tokenizer.json that chatmill can read: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _read(content: dict[str, Any], type: str | None) -> Vocabulary:
    model = content["model"]
    kind, fallback = model["type"], model.get("byte_fallback", False)
    if kind == "WordPiece" and model["continuing_subword_prefix"] != CONTINUATION:
        raise ValueError("only chatmill's own WordPiece takes every text: use another tokenizer")
    if kind == "Unigram" and fallback:
        scores = [score for _, score in model["vocab"]]
        return _sentencepiece(content, {piece: i for i, (piece, _) in enumerate(model["vocab"])}, scores)
    if kind == "BPE" and fallback:
        return _sentencepiece(content, model["vocab"], None)
    if kind in ("BPE", "WordPiece"):
        return _byte_level(content, type)
    raise ValueError(f"a {kind} model without bytes to fall back on cannot take every text: use another tokenizer")


def _sentencepiece(content: dict[str, Any], ids: dict[str, int], scores: list[float] | None) -> Vocabulary:
    for step, expected in _SENTENCEPIECE_STEPS.items():
        if content[step] != expected:
            raise ValueError(f"its {step} changes the text: use a tokenizer that keeps every character")
    text = {i: sentencepiece_entry(piece) for piece, i in ids.items()}
    tokens, kinds = _in_order(text | _special(content))
    if scores is None:
        merges = _merges(content["model"], ids)
        return Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds, merges), merges)
    return Vocabulary("sentencepiece", "viterbi", None, tokens, kinds, tuple(map(float32, scores)))


def _byte_level(content: dict[str, Any], type: str | None) -> Vocabulary:
    model = content["model"]
    if content["normalizer"] not in (None, {"type": "NFC"}):
        raise ValueError("its normalizer changes the text: use a tokenizer that keeps every character")
    tokens, kinds = _in_order({i: byte_level_entry(piece) for piece, i in model["vocab"].items()} | _special(content))
    pattern, merges = _pattern(content["pre_tokenizer"]), _merges(model, model["vocab"])
    lookup = model.get("ignore_merges", False) and not merges
    algorithm: Algorithm = "wordpiece" if model["type"] == "WordPiece" else "lookup" if lookup else "merge"
    shape = "wordpiece" if algorithm == "wordpiece" else _LOOKUP_TYPES.get(pattern, "bpe") if lookup else "bpe"
    scores = rank_scores(tokens, kinds, merges)
    return Vocabulary(type or shape, algorithm, pattern, tokens, kinds, scores, merges)


def _special(content: dict[str, Any]) -> dict[int, Entry]:
    names = {token["id"]: token["content"] for token in content["added_tokens"]}
    return {i: (name.encode(), Kind.UNUSED if name.startswith(UNUSED) else Kind.CONTROL) for i, name in names.items()}


def sentencepiece_entry(piece: str) -> Entry:
    """The bytes and the kind of a text piece, as SentencePiece spells it."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes.fromhex(piece[3:5]), Kind.FALLBACK
    return piece.replace(SPACE, " ").encode(), Kind.NORMAL


def byte_level_entry(piece: str) -> Entry:
    """The bytes and the kind of a piece in letters of the byte-level alphabet."""
    letters = piece.removeprefix(CONTINUATION)
    return bytes(map(_BYTES.__getitem__, letters)), Kind.NORMAL if letters == piece else Kind.CONTINUATION


def _in_order(entries: dict[int, Entry]) -> tuple[tuple[bytes, ...], tuple[Kind, ...]]:
    """Tokens and kinds by id. Raises ValueError for a gap, and where a byte has no token."""
    missing = next((i for i in range(len(entries)) if i not in entries), None)
    if missing is not None:
        raise ValueError(f"no token has the id {missing}")
    tokens, kinds = zip(*(entries[i] for i in range(len(entries))), strict=True)
    for kind in {Kind.FALLBACK if Kind.FALLBACK in kinds else Kind.NORMAL, Kind.CONTINUATION} & set(kinds):
        single = {token for token, other in zip(tokens, kinds, strict=True) if other == kind and len(token) == 1}
        if len(single) < 256:
            raise ValueError(f"{256 - len(single)} of the 256 bytes have no token: it cannot take every text")
    return tokens, kinds


def _pattern(steps: dict[str, Any] | None) -> str | None:
    match steps:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return PATTERNS["gpt2"]
        case {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "use_regex": False}]}:
            return None
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    raise ValueError("its pre_tokenizer is not one pattern followed by bytes")


def _merges(model: dict[str, Any], ids: dict[str, int]) -> tuple[Pair, ...]:
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", []))
    return tuple((ids[left], ids[right]) for left, right in pairs)
