"""tokenizer.json: the file format of Hugging Face's `tokenizers`, and chatmill's canonical one.

Byte-level types are `Split(pattern) + ByteLevel` before a BPE or WordPiece model; lookup is BPE that ignores its
(absent) merges. SentencePiece types do not split the text, with spaces as U+2581 and `<0x0A>` for the byte 10. Control
and unused tokens are special added tokens. chatmill.tokenizer.vocabulary.tokenizer_json_reader reads the file.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tokenizers import models

from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, exact_scores, flat, to_tokenizers_json
from chatmill.tokenizer.vocabulary.vocabulary import CONTINUING_SUBWORD_PREFIX, FLAGS, TEXT_KINDS, Kind, Vocabulary

BYTE_LEVEL_SUBWORD_PREFIX = "→"  # before WordPiece continuations; not in the byte-level alphabet
UNREACHABLE_PREFIX = "\ufffe"  # a noncharacter; before the number of an id that no text may produce
UNUSED_ENTRY = re.compile(r"\[unused\d+\]")  # the names of unused entries in BERT's vocabularies
MAX_INPUT_CHARS_PER_WORD = 100  # bytes or characters; WordPiece takes a longer piece for unknown

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_TO_UNICODE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + place) for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
_UNICODE_TO_BYTE = {letter: byte for byte, letter in _BYTE_TO_UNICODE.items()}
Entry = tuple[bytes, Kind]


def to_json(vocabulary: Vocabulary, *, special: bool = True) -> str:
    """The file's content; without `special`, no text can produce the ids of control tokens."""
    content: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None}
    content["added_tokens"] = list(_added_tokens(vocabulary, special))
    content |= _byte_level_steps(vocabulary) if vocabulary.spelling == "bytes" else SENTENCEPIECE_STEPS
    if vocabulary.steps is not None and vocabulary.spelling != "bytes":
        content |= to_tokenizers_json(vocabulary.steps)
    content["model"] = _model(vocabulary, special)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _added_tokens(vocabulary: Vocabulary, special: bool) -> Iterator[dict[str, Any]]:
    """The tokens that are found in text before the rest is split; without `special`, those that are not special."""
    flags = vocabulary.flags
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind == Kind.ADDED or (special and kind not in TEXT_KINDS and not UNUSED_ENTRY.fullmatch(token.decode())):
            entry = {"id": i, "content": token.decode()} | dict.fromkeys(FLAGS, False)
            yield entry | {"special": kind != Kind.ADDED} | flags.get(token.decode(), {})


def _byte_level_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": vocabulary.pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    splits = [split, byte_level] if vocabulary.pattern else [byte_level]
    decoder: dict[str, Any] = byte_level
    if vocabulary.algorithm == "wordpiece":
        strip = {"type": "Replace", "pattern": {"String": BYTE_LEVEL_SUBWORD_PREFIX}, "content": ""}
        decoder = {"type": "Sequence", "decoders": [strip, byte_level]}
    before = {} if vocabulary.steps is None else to_tokenizers_json(vocabulary.steps)
    return {
        "normalizer": before.get("normalizer"),
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*flat("pre_tokenizer", before.get("pre_tokenizer")), *splits],
        },
        "post_processor": vocabulary.handling.get("post_processor"),
        "decoder": decoder,
    }


SENTENCEPIECE_STEPS = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE},
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    },
}


def _model(vocabulary: Vocabulary, special: bool) -> dict[str, Any]:
    kinds = enumerate(vocabulary.kinds)
    # Added tokens that the model lacks get the ids after its own, without a gap: all are listed only with `special`
    listed = {entry["id"] for entry in _added_tokens(vocabulary, special)} if special else set()
    last = max((i for i in _in_model(vocabulary) if i not in listed), default=-1)
    pieces = [
        id_to_piece(vocabulary, i) if special or kind in TEXT_KINDS else f"{UNREACHABLE_PREFIX}{i}" for i, kind in kinds
    ]
    unknown = next((i for i, kind in enumerate(vocabulary.kinds) if kind == Kind.UNKNOWN), None)
    if vocabulary.algorithm == "viterbi":
        unknown = vocabulary.kinds.index(Kind.UNUSED) if unknown is None else unknown
        scores = vocabulary.scores if vocabulary.steps is None else exact_scores(vocabulary.steps, vocabulary.scores)
        scored = [list(entry) for entry in zip(pieces, scores, strict=True)]
        scored = scored if vocabulary.steps is None else scored[: 1 + max(last, unknown)]
        fallback = Kind.FALLBACK in vocabulary.kinds
        return {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": fallback}
    ids = {piece: i for i, piece in enumerate(pieces) if i <= last}
    if vocabulary.algorithm == "wordpiece":
        plain = vocabulary.spelling == "plain"
        return {
            "type": "WordPiece",
            "unk_token": "[UNK]" if unknown is None else pieces[unknown],
            "continuing_subword_prefix": CONTINUING_SUBWORD_PREFIX if plain else BYTE_LEVEL_SUBWORD_PREFIX,
            "max_input_chars_per_word": MAX_INPUT_CHARS_PER_WORD,
            "vocab": ids,
        }
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else pieces[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": Kind.FALLBACK in vocabulary.kinds,
        "ignore_merges": vocabulary.algorithm == "lookup" or bool(unmerged(vocabulary)),
        "vocab": ids,
        "merges": [[pieces[left], pieces[right]] for left, right in vocabulary.merges],
    }


def _in_model(vocabulary: Vocabulary) -> Iterator[int]:
    """The ids in the model's own list: those of text, and BERT's unused entries, which are no added tokens."""
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind in TEXT_KINDS or (kind >= Kind.CONTROL and UNUSED_ENTRY.fullmatch(token.decode())):
            yield i


@lru_cache(maxsize=1)
def unmerged(vocabulary: Vocabulary) -> list[int]:
    """The ids of byte-level tokens that merging their own bytes does not give: only looking up a piece gives them."""
    if vocabulary.algorithm != "merge" or vocabulary.spelling != "bytes":
        return []
    pieces = {i: id_to_piece(vocabulary, i) for i, kind in enumerate(vocabulary.kinds) if kind == Kind.NORMAL}
    ids = {piece: i for i, piece in pieces.items()}
    pairs = [(pieces[left], pieces[right]) for left, right in vocabulary.merges if left in pieces and right in pieces]
    model = models.BPE(ids, [pair for pair in pairs if "".join(pair) in ids])
    return [i for i, piece in pieces.items() if [token.id for token in model.tokenize(piece)] != [i]]


def id_to_piece(vocabulary: Vocabulary, i: int) -> str:
    """How the file writes a token: in the byte-level alphabet, as SentencePiece does, or as plain text."""
    token, kind = vocabulary.tokens[i], vocabulary.kinds[i]
    if kind >= Kind.CONTROL:
        return token.decode()
    if kind == Kind.FALLBACK:
        return f"<0x{token[0]:02X}>"
    match vocabulary.spelling:
        case "marked":
            return token.decode().replace(" ", METASPACE)
        case "plain":
            return (CONTINUING_SUBWORD_PREFIX if kind == Kind.CONTINUATION else "") + token.decode()
    letters = "".join(map(_BYTE_TO_UNICODE.__getitem__, token))
    return BYTE_LEVEL_SUBWORD_PREFIX + letters if kind == Kind.CONTINUATION else letters


def sentencepiece_entry(piece: str) -> Entry:
    """The bytes and the kind of a text piece, as SentencePiece writes it."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes.fromhex(piece[3:5]), Kind.FALLBACK
    return piece.replace(METASPACE, " ").encode(), Kind.NORMAL


def byte_level_entry(piece: str) -> Entry:
    """The bytes and the kind of a piece in letters of the byte-level alphabet. Raises ValueError for other letters."""
    letters = piece.removeprefix(BYTE_LEVEL_SUBWORD_PREFIX)
    if not letters or not all(map(_UNICODE_TO_BYTE.__contains__, letters)):
        raise ValueError(f"its piece {piece!r:.80} is not in the byte-level alphabet")
    return bytes(map(_UNICODE_TO_BYTE.__getitem__, letters)), Kind.NORMAL if letters == piece else Kind.CONTINUATION


def plain_entry(piece: str) -> Entry:
    """The bytes and the kind of an entry of a plain-text WordPiece vocabulary."""
    if UNUSED_ENTRY.fullmatch(piece):
        return piece.encode(), Kind.UNUSED
    text = piece.removeprefix(CONTINUING_SUBWORD_PREFIX)
    return (text.encode(), Kind.CONTINUATION) if text and text != piece else (piece.encode(), Kind.NORMAL)
