"""tokenizer.json: the file format of Hugging Face's `tokenizers`, and chatmill's canonical one.

Byte-level types are `Split(pattern) + ByteLevel` before a BPE or WordPiece model; lookup is BPE that ignores its
(absent) merges. SentencePiece types do not split the text, with spaces as U+2581 and `<0x0A>` for the byte 10. Control
and unused tokens are special added tokens. External files may have other components around the model, if
chatmill.tokenizer.vocabulary.preprocessing supports them; anything else is refused.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from chatmill.tokenizer.vocabulary.patterns import ANYTHING, CHARACTERS, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.preprocessing import (
    METASPACE,
    exact_scores,
    from_tokenizers_json,
    to_tokenizers_json,
    types_of,
)
from chatmill.tokenizer.vocabulary.vocabulary import (
    CONTINUING_SUBWORD_PREFIX,
    NO_RANK,
    UNUSED_PREFIX,
    Algorithm,
    Kind,
    MergePair,
    Vocabulary,
    check_lengths,
    drop_unreachable_merges,
    float32,
    merges_by_rank,
    rank_scores,
)

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
SPECIAL_NAME = re.compile(r"<.+>|\[.+\]")
LOSSY_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFKC", "NFKD", "Precompiled", "Strip", "StripAccents"}
_LOOKUP_TYPES: dict[str | None, str] = {WORDS: "whitespace", CHARACTERS: "char", ANYTHING: "byte"}


def write_tokenizer_json(vocabulary: Vocabulary, file: Path) -> None:
    """Write the file; `read_tokenizer_json` is the inverse."""
    file.write_text(to_json(vocabulary), encoding="utf-8")


def to_json(vocabulary: Vocabulary, *, special: bool = True) -> str:
    """The file's content; without `special`, no text can produce the ids of control tokens."""
    added = [
        {"id": i, "content": token.decode(), "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if special and kind >= Kind.CONTROL and not UNUSED_ENTRY.fullmatch(token.decode())
    ]
    content: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    content |= _byte_level_steps(vocabulary) if vocabulary.spelling == "bytes" else _SENTENCEPIECE_STEPS
    if vocabulary.steps is not None:
        steps = to_tokenizers_json(vocabulary.steps)
        content |= {place: steps[place] for place in steps if steps[place] or vocabulary.spelling != "bytes"}
    content["model"] = _model(vocabulary, special)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _byte_level_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": vocabulary.pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps = [split, byte_level] if vocabulary.pattern else [byte_level]
    decoder: dict[str, Any] = byte_level
    if vocabulary.algorithm == "wordpiece":
        strip = {"type": "Replace", "pattern": {"String": BYTE_LEVEL_SUBWORD_PREFIX}, "content": ""}
        decoder = {"type": "Sequence", "decoders": [strip, byte_level]}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": decoder,
    }


_SENTENCEPIECE_STEPS = {
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
    pieces = [
        id_to_piece(vocabulary, i) if special or kind < Kind.CONTROL else f"{UNREACHABLE_PREFIX}{i}"
        for i, kind in kinds
    ]
    unknown = next((i for i, kind in enumerate(vocabulary.kinds) if kind == Kind.UNKNOWN), None)
    if vocabulary.algorithm == "viterbi":
        unknown = vocabulary.kinds.index(Kind.UNUSED) if unknown is None else unknown
        scores = vocabulary.scores if vocabulary.steps is None else exact_scores(vocabulary.steps, vocabulary.scores)
        last = len(pieces) if vocabulary.steps is None else 1 + max(*vocabulary.text_ids, unknown)
        scored = [list(entry) for entry in zip(pieces, scores, strict=True)][:last]
        fallback = Kind.FALLBACK in vocabulary.kinds
        return {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": fallback}
    last = max(vocabulary.text_ids, default=-1)  # added tokens that the model lacks get the ids after it
    ids = {piece: i for i, piece in enumerate(pieces) if vocabulary.kinds[i] < Kind.CONTROL or i < last}
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
        "ignore_merges": vocabulary.algorithm == "lookup" or bool(_unmerged(vocabulary)),
        "vocab": ids,
        "merges": [[pieces[left], pieces[right]] for left, right in vocabulary.merges],
    }


def _unmerged(vocabulary: Vocabulary) -> list[int]:
    """The ids of byte-level tokens that no merge makes: only looking up a complete piece gives them."""
    if vocabulary.algorithm != "merge" or vocabulary.spelling != "bytes":
        return []
    merged = {vocabulary.tokens[left] + vocabulary.tokens[right] for left, right in vocabulary.merges}
    return [i for i in vocabulary.text_ids if len(vocabulary.tokens[i]) > 1 and vocabulary.tokens[i] not in merged]


def _unreached(vocabulary: Vocabulary) -> Iterator[int]:
    """The ids of tokens that merging their own bytes does not give."""
    tokens = vocabulary.tokens
    ids = {tokens[i]: i for i in vocabulary.text_ids}
    if merges_by_rank(ids) == vocabulary.merges:
        yield from _unmerged(vocabulary)
        return
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    for i in vocabulary.text_ids:
        parts = [ids.get(tokens[i][k : k + 1], i) for k in range(len(tokens[i]))]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                yield i
                break
            place = [*pairwise(parts)].index(best)
            parts[place : place + 2] = [ids[tokens[best[0]] + tokens[best[1]]]]


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


def read_tokenizer_json(file: Path, type: str | None = None) -> Vocabulary:
    """The vocabulary in a file; its `type` is inferred from its content unless it is given.

    Every added token becomes a control token. Raises ValueError for unsupported files.
    """
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicate_keys), type)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise ValueError(f"{file}: not a tokenizer.json that chatmill can read: {error!r:.200}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError if it has a key twice: readers differ in which value they take."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object in it has a key twice")
    return result


def from_json(content: dict[str, Any], type: str | None = None) -> Vocabulary:
    """The vocabulary in a file's content. Raises ValueError, KeyError, TypeError and the like if it has none."""
    model = content["model"]
    for option in ("dropout", "end_of_word_suffix"):
        if model.get(option):
            raise ValueError(f"its {option} is not supported: use another tokenizer")
    match _kind(model), model.get("byte_fallback", False), model.get("continuing_subword_prefix"):
        case "Unigram", _, _:
            pieces = [piece for piece, _ in model["vocab"]]
            scores = [_score(score) for _, score in model["vocab"]]
            return _sentencepiece(content, _numbered(pieces), model["unk_id"], scores)
        case "BPE", fallback, None | "" if fallback or model.get("unk_token") is not None:
            return _sentencepiece(content, model["vocab"], model["vocab"].get(model.get("unk_token")), None)
        case "WordPiece", _, "##":
            return _plain_wordpiece(content)
        case ("BPE", _, None | "") | ("WordPiece", _, "→"):
            return _byte_level(content, type)
    raise ValueError(f"a {_kind(model):.40} model with these settings is not supported: use another tokenizer")


def _kind(model: dict[str, Any]) -> str:
    """The model's type, which older files do not name."""
    if "type" in model:
        return str(model["type"])
    return "Unigram" if "unk_id" in model else "BPE" if "merges" in model else "WordPiece"


def _sentencepiece(
    content: dict[str, Any], ids: dict[str, int], unknown: int | None, scores: list[float] | None
) -> Vocabulary:
    _check_sentencepiece(content, ids, scores)
    steps, exact = None, [] if scores is None or scores == list(map(float32, scores)) else scores
    if exact or any(content[place] != step for place, step in _SENTENCEPIECE_STEPS.items()):
        steps = from_tokenizers_json(content, exact)
    entries = _with_added_tokens(ids, {i: sentencepiece_entry(piece) for piece, i in ids.items()}, content)
    if unknown is not None and not entries[unknown][0].startswith(UNUSED_PREFIX.encode()):
        entries[unknown] = entries[unknown][0], Kind.UNKNOWN
    tokens, kinds = _in_order(entries)
    if scores is not None:
        padded = (*map(float32, scores), *[NO_RANK] * (len(tokens) - len(scores)))
        return Vocabulary("sentencepiece", "viterbi", None, tokens, kinds, padded, steps=steps)
    merges = _merges(content["model"], ids)
    scored = rank_scores(tokens, kinds, merges)
    return Vocabulary("sentencepiece", "merge", None, tokens, kinds, scored, merges, steps)


def _check_sentencepiece(content: dict[str, Any], ids: dict[str, int], scores: list[float] | None) -> None:
    """Raise ValueError for settings that chatmill's encoder and files cannot express."""
    model, fallback = content["model"], bool(content["model"].get("byte_fallback"))
    if any(" " in piece for piece in ids):
        raise ValueError("a piece contains a space, which is written as U+2581")
    bytes_of = [i for piece, i in ids.items() if sentencepiece_entry(piece)[1] == Kind.FALLBACK]
    if bytes_of and not fallback:
        raise ValueError("it has byte pieces, such as <0x0A>, but byte_fallback is not set")
    if scores is not None and any(scores[i] > NO_RANK for i in bytes_of):
        raise ValueError("its byte pieces, such as <0x0A>, also match that text")
    if model.get("ignore_merges"):
        raise ValueError("its ignore_merges is supported for byte-level BPE only")
    if scores is None and model.get("unk_token") is not None and not fallback and not model.get("fuse_unk"):
        raise ValueError("it gives each unknown character a token (fuse_unk is not set), which is not supported")


def _byte_level(content: dict[str, Any], type: str | None) -> Vocabulary:
    model = content["model"]
    steps = None if content["normalizer"] is None else from_tokenizers_json({"normalizer": content["normalizer"]})
    entries = _with_added_tokens(
        model["vocab"], {i: byte_level_entry(piece) for piece, i in model["vocab"].items()}, content
    )
    tokens, kinds = _in_order(entries)
    pattern, merges = _pattern(content["pre_tokenizer"]), _merges(model, model["vocab"])
    if len({tokens[left] + tokens[right] for left, right in merges}) < len(merges):
        merges = drop_unreachable_merges(
            merges, {token: i for i, token in enumerate(tokens) if kinds[i] < Kind.CONTROL}
        )
    ignore_merges = model.get("ignore_merges", False)
    lookup = ignore_merges and not merges
    algorithm: Algorithm = "wordpiece" if _kind(model) == "WordPiece" else "lookup" if lookup else "merge"
    shape = "wordpiece" if algorithm == "wordpiece" else _LOOKUP_TYPES.get(pattern, "bpe") if lookup else "bpe"
    scores = rank_scores(tokens, kinds, merges)
    vocabulary = Vocabulary(type or shape, algorithm, pattern, tokens, kinds, scores, merges, steps)
    for i in [] if ignore_merges or algorithm != "merge" else _unreached(vocabulary):
        raise ValueError(f"no merge makes its token {i}, {tokens[i]!r:.80}, and ignore_merges is not set")
    return vocabulary


def _plain_wordpiece(content: dict[str, Any]) -> Vocabulary:
    model = content["model"]
    if (longest := model["max_input_chars_per_word"]) != MAX_INPUT_CHARS_PER_WORD:
        raise ValueError(f"its max_input_chars_per_word: expected {MAX_INPUT_CHARS_PER_WORD}, got {longest!r:.40}")
    entries = _with_added_tokens(
        model["vocab"], {i: plain_entry(piece) for piece, i in model["vocab"].items()}, content
    )
    unknown = model["vocab"][model["unk_token"]]
    entries[unknown] = model["unk_token"].encode(), Kind.UNKNOWN
    tokens, kinds = _in_order(entries)
    scores, steps = rank_scores(tokens, kinds), from_tokenizers_json(content)
    return Vocabulary("wordpiece", "wordpiece", None, tokens, kinds, scores, steps=steps)


def _score(number: Any) -> float:
    if type(number) not in (int, float) or not abs(number) < 1e30:
        raise ValueError(f"the score {number!r:.40} is not a number, or is too large")
    return float(number)


def _numbered(pieces: Sequence[str]) -> dict[str, int]:
    ids = {piece: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise ValueError("its vocabulary has a piece twice")
    return ids


def _with_added_tokens(ids: dict[str, int], entries: dict[int, Entry], content: dict[str, Any]) -> dict[int, Entry]:
    """The text entries by id, with the added tokens. Raises ValueError if two share an id."""
    by_id: dict[int, str] = {}
    for piece, i in ids.items():
        if type(i) is not int or by_id.setdefault(i, piece) != piece:
            raise ValueError(f"its piece {piece!r:.80} has the id {i!r:.80}: not an integer, or another piece's")
    names: dict[str, int] = {}
    for token in content["added_tokens"]:
        i, name = token["id"], token["content"]
        if token.get("normalized") and LOSSY_NORMALIZERS & set(types_of(content.get("normalizer"))):
            raise ValueError(f"its added token {name!r:.80} is searched in normalised text, which is not supported")
        if not token.get("special", True) and not SPECIAL_NAME.fullmatch(name):
            raise ValueError(f"its added token {name!r:.80} is not special: only `tokenizers` would find it in text")
        if type(i) is not int or by_id.setdefault(i, name) != name or names.setdefault(name, i) != i:
            raise ValueError(f"its added token {name!r:.80} has the id {i!r:.80}: not an integer, or another token's")
        entries[i] = name.encode(), Kind.UNUSED if name.startswith(UNUSED_PREFIX) else Kind.CONTROL
    return entries


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


def _in_order(entries: dict[int, Entry]) -> tuple[tuple[bytes, ...], tuple[Kind, ...]]:
    """Tokens and kinds by id. Raises ValueError for a gap, and for a token that is empty or too long."""
    missing = next((i for i in range(len(entries)) if i not in entries), None)
    if missing is not None:
        raise ValueError(f"no token has the id {missing}")
    tokens, kinds = zip(*(entries[i] for i in range(len(entries))), strict=True)
    check_lengths(tokens)
    return tokens, kinds


def _pattern(steps: dict[str, Any] | None) -> str | None:
    match steps:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return PATTERNS["gpt2"]
        case {
            "type": "Sequence",
            "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}],
        }:
            return None
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    raise ValueError("its pre_tokenizer is not one Split pattern followed by ByteLevel")


def _merges(model: dict[str, Any], ids: dict[str, int]) -> tuple[MergePair, ...]:
    pairs: list[MergePair] = []
    for rank, merge in enumerate(model.get("merges", [])):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or not all(part in ids for part in (*parts, "".join(parts))):
            raise ValueError(f"its merge {rank}, {merge!r:.80}, is not of two tokens that make a third one")
        pairs.append((ids[parts[0]], ids[parts[1]]))
    if len(set(pairs)) < len(pairs):
        raise ValueError("it has a merge twice")
    return tuple(pairs)
