"""tokenizer.json: the file format of Hugging Face's `tokenizers`, and chatmill's canonical one.

Byte-level types are `Split(pattern) + ByteLevel` before a BPE or WordPiece model; lookup is BPE that ignores its
(absent) merges. SentencePiece types do not split the text, with spaces as U+2581 and `<0x0A>` for the byte 10. Control
and unused tokens are special added tokens. External files may have other components around the model.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tokenizers import models

from chatmill.tokenizer.vocabulary.patterns import ANYTHING, CHARACTERS, DIGITS_THEN_GPT2, PATTERNS, WORDS
from chatmill.tokenizer.vocabulary.preprocessing import (
    DECODERS,
    METASPACE,
    flat,
    float32,
    from_tokenizers_json,
    keeps_characters,
    library_of,
    replace_step,
    to_tokenizers_json,
)
from chatmill.tokenizer.vocabulary.vocabulary import (
    BYTE_LEVEL_SUBWORD_PREFIX,
    CONTINUING_SUBWORD_PREFIX,
    FLAGS,
    NO_RANK,
    TEXT_KINDS,
    UNUSED_ENTRY,
    UNUSED_PREFIX,
    Algorithm,
    Entry,
    Kind,
    MergePair,
    Vocabulary,
    byte_level_entry,
    id_to_piece,
    merges_by_rank,
    plain_entry,
    rank_scores,
    sentencepiece_entry,
    to_special_handling,
    unused_names,
)

UNREACHABLE_PREFIX = "\ufffe"  # a noncharacter; before the number of an id that no text may produce
MAX_INPUT_CHARS_PER_WORD = 100  # bytes or characters; WordPiece takes a longer piece for unknown

SPECIAL_NAME = re.compile(r"<.+>|\[.+\]")
_LOOKUP_TYPES: dict[str | None, str] = {WORDS: "whitespace", CHARACTERS: "char", ANYTHING: "byte"}


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
    """The tokens that are found in text before the rest is split; without `special`, those that are not special.

    BERT's unused entries are in the model's own list.
    """
    flags = vocabulary.flags
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind == Kind.ADDED or (special and kind not in TEXT_KINDS and not UNUSED_ENTRY.fullmatch(token.decode())):
            entry = {"id": i, "content": token.decode()} | dict.fromkeys(FLAGS, False)
            yield entry | {"special": kind != Kind.ADDED} | flags.get(token.decode(), {})


def _byte_level_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    splits = byte_level_splits(vocabulary.pattern)
    decoder = splits[-1]
    if vocabulary.algorithm == "wordpiece":
        strip = replace_step(String=BYTE_LEVEL_SUBWORD_PREFIX, content="")
        decoder = {"type": "Sequence", "decoders": [strip, decoder]}
    before = {} if vocabulary.steps is None else to_tokenizers_json(vocabulary.steps)
    splits = [*flat("pre_tokenizer", before.get("pre_tokenizer")), *splits]
    return {
        "normalizer": before.get("normalizer"),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": vocabulary.handling.get("post_processor"),
        "decoder": decoder,
    }


def byte_level_splits(pattern: str | None) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return [split, byte_level] if pattern else [byte_level]


SENTENCEPIECE_STEPS = {
    "normalizer": replace_step(String=" ", content=METASPACE),
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {"type": "Sequence", "decoders": DECODERS},
}


def _model(vocabulary: Vocabulary, special: bool) -> dict[str, Any]:
    kinds = enumerate(vocabulary.kinds)
    # Added tokens that the model lacks get the ids after its own, without a gap: all are listed only with `special`
    found, added = ({entry["id"] for entry in _added_tokens(vocabulary, each)} for each in (False, True))
    outside = added if special else added - found
    last = max((i for i in range(len(vocabulary.tokens)) if i not in outside), default=-1)
    pieces = [
        id_to_piece(vocabulary, i) if special or kind in TEXT_KINDS else f"{UNREACHABLE_PREFIX}{i}" for i, kind in kinds
    ]
    unknown = next((i for i, kind in enumerate(vocabulary.kinds) if kind == Kind.UNKNOWN), None)
    if vocabulary.algorithm == "viterbi":
        unknown = vocabulary.kinds.index(Kind.UNUSED) if unknown is None else unknown
        exact = [] if vocabulary.steps is None else library_of(vocabulary.steps)[1].get("scores", [])
        scored = [[*entry] for entry in zip(pieces, [*exact, *vocabulary.scores[len(exact) :]], strict=True)]
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


# Reading the file.


def from_json(content: dict[str, Any], type: str | None = None) -> Vocabulary:
    """The vocabulary in a file's content; its `type` is inferred from that unless it is given.

    Raises ValueError, KeyError, TypeError and the like for content that has none, or an unsupported one.
    """
    if "model" not in content:
        raise ValueError("a JSON object without a model: it is not a tokenizer.json")
    model = content["model"]
    if not model.get("vocab"):
        raise ValueError("its model has no vocabulary")
    if model.get("dropout"):
        raise ValueError("its dropout makes ids random: set it to null in the file")
    if suffix := model.get("end_of_word_suffix"):
        reason = f"it marks the ends of words by {suffix!r:.40}, which no other format expresses"
        raise ValueError(f"{reason}: use its tokenizer.json in `tokenizers`")
    byte_level = any(step["type"] == "ByteLevel" for step in flat("pre_tokenizer", content.get("pre_tokenizer")))
    match _kind(model), model.get("byte_fallback", False), model.get("continuing_subword_prefix"):
        case "Unigram", _, _:
            ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
            if len(ids) < len(model["vocab"]):
                raise ValueError("its vocabulary has a piece twice")
            return _sentencepiece(content, ids, model["unk_id"], [float(score) for _, score in model["vocab"]])
        case "BPE", fallback, None | "" if not byte_level and (fallback or model.get("unk_token") is not None):
            return _sentencepiece(content, model["vocab"], model["vocab"].get(model.get("unk_token")), None)
        case "WordPiece", _, "##":
            return _plain_wordpiece(content)
        case ("BPE", _, None | "") | ("WordPiece", _, "→"):
            return _byte_level(content, type)
        case "WordLevel", _, _:
            raise ValueError("it has a token for each word, so text is lost: use a tokenizer with byte fallback")
    raise ValueError(f"a {_kind(model):.40} model with these settings is not supported: use another tokenizer")


def _kind(model: dict[str, Any]) -> str:
    if "type" in model:
        return str(model["type"])
    return "Unigram" if "unk_id" in model else "BPE" if "merges" in model else "WordPiece"


def _sentencepiece(
    content: dict[str, Any], ids: dict[str, int], unknown: int | None, scores: list[float] | None
) -> Vocabulary:
    """The vocabulary of a Unigram model, which has `scores`, or of a BPE with merges, as SentencePiece's are written.

    It keeps its steps, unless they are those that chatmill writes.
    """
    _check_sentencepiece(content, ids, scores)
    inexact = scores if scores is not None and scores != list(map(float32, scores)) else []
    entries = _entries(ids, sentencepiece_entry, content)
    scored_added = scores is not None and any(kind == Kind.ADDED for _, kind in entries.values())
    # Only chatmill writes such names; other programs take U+2581 in text for a space
    is_own = any(token.startswith(UNUSED_PREFIX.encode()) for token, _ in entries.values())
    is_own &= all(content.get(place) == step for place, step in SENTENCEPIECE_STEPS.items())
    steps = None if is_own and not inexact and not scored_added else from_tokenizers_json(content, inexact)
    special = _special_handling(content)
    if unknown is not None and not entries[unknown][0].startswith(UNUSED_PREFIX.encode()):
        entries[unknown] = entries[unknown][0], Kind.UNKNOWN
    tokens, kinds = _in_order(entries)
    if scores is not None:
        padded = (*map(float32, scores), *[NO_RANK] * (len(tokens) - len(scores)))
        return Vocabulary("sentencepiece", "viterbi", None, tokens, kinds, padded, (), steps, special)
    merges = _merges(content["model"], ids)
    scored = rank_scores(tokens, kinds, merges)
    return Vocabulary("sentencepiece", "merge", None, tokens, kinds, scored, merges, steps, special)


def _check_sentencepiece(content: dict[str, Any], ids: dict[str, int], scores: list[float] | None) -> None:
    """Raise ValueError for a model that no format but its own expresses."""
    model, added = content["model"], {token["content"] for token in content.get("added_tokens", [])}
    fallback, lacks_unknown = bool(model.get("byte_fallback")), scores is not None or model.get("unk_token") is None
    if any(" " in piece for piece in ids.keys() - added):
        raise ValueError("a piece contains a space, which is written as U+2581")
    bytes_of = [i for piece, i in ids.items() if sentencepiece_entry(piece)[1] == Kind.FALLBACK]
    if bytes_of and (not fallback or (scores is not None and any(scores[i] > NO_RANK for i in bytes_of))):
        raise ValueError("its byte pieces, such as <0x0A>, also match that text")
    if model.get("ignore_merges") or not (lacks_unknown or fallback or model.get("fuse_unk")):
        raise ValueError("it sets ignore_merges, or does not set fuse_unk: both are supported for byte-level BPE only")


def _byte_level(content: dict[str, Any], type: str | None) -> Vocabulary:
    """The vocabulary of a byte-level BPE, or of our byte-level WordPiece; a BPE without merges is a lookup."""
    model = content["model"]
    splits, pattern = _splits(content.get("pre_tokenizer"))
    normalizer, steps = content.get("normalizer"), None
    if normalizer is not None or splits:
        pre_tokenizer = {"type": "Sequence", "pretokenizers": splits} if splits else None
        steps = from_tokenizers_json({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})
    entries = _entries(model["vocab"], byte_level_entry, content)
    tokens, kinds = _in_order(entries)
    merges = _merges(model, model["vocab"])
    if len({tokens[left] + tokens[right] for left, right in merges}) < len(merges):
        ranks = {token: i for i, token in enumerate(tokens) if kinds[i] == Kind.NORMAL}
        merges = _drop_redundant_merges(merges, ranks)
    ignore_merges = model.get("ignore_merges", False)
    lookup = ignore_merges and not merges
    algorithm: Algorithm = "wordpiece" if _kind(model) == "WordPiece" else "lookup" if lookup else "merge"
    shape = "wordpiece" if algorithm == "wordpiece" else _LOOKUP_TYPES.get(pattern, "bpe") if lookup else "bpe"
    scores, special = rank_scores(tokens, kinds, merges), _special_handling(content, with_post_processor=True)
    vocabulary = Vocabulary(type or shape, algorithm, pattern, tokens, kinds, scores, merges, steps, special)
    return vocabulary if ignore_merges or algorithm != "merge" else _mark_unmergeable_unused(vocabulary)


def _drop_redundant_merges(merges: tuple[MergePair, ...], ranks: Mapping[bytes, int]) -> tuple[MergePair, ...]:
    """The merges without redundant ones, if they are sorted by the rank of the token they make.

    Some programs list every pair that makes a token; but only the pair that `merges_by_rank` gives is ever merged.
    """
    tokens = {i: token for token, i in ranks.items()}
    merged = [ranks[tokens[left] + tokens[right]] for left, right in merges]
    needed = merges_by_rank(ranks)
    return needed if merged == sorted(merged) and set(needed) <= set(merges) else merges


def _mark_unmergeable_unused(vocabulary: Vocabulary) -> Vocabulary:
    """Mark as unused the tokens that merging never makes: without `ignore_merges`, no piece is looked up whole."""
    tokens, kinds = list(vocabulary.tokens), list(vocabulary.kinds)
    lost = {tokens[i] for i in unmerged(vocabulary)}
    for i, name in zip(unmerged(vocabulary), unused_names(set(tokens)), strict=False):
        tokens[i], kinds[i] = name, Kind.UNUSED
    pairs = ((pair, [vocabulary.tokens[i] for i in pair]) for pair in vocabulary.merges)
    merges = tuple(pair for pair, (left, right) in pairs if lost.isdisjoint((left, right, left + right)))
    scores = rank_scores(tokens, kinds, merges)
    return replace(vocabulary, tokens=tuple(tokens), kinds=tuple(kinds), scores=scores, merges=merges)


def _plain_wordpiece(content: dict[str, Any]) -> Vocabulary:
    model = content["model"]
    if model["max_input_chars_per_word"] != MAX_INPUT_CHARS_PER_WORD:
        raise ValueError(f"its max_input_chars_per_word is not {MAX_INPUT_CHARS_PER_WORD}, which others cannot express")
    entries = _entries(model["vocab"], plain_entry, content)
    unknown = model["vocab"][model["unk_token"]]
    entries[unknown] = model["unk_token"].encode(), Kind.UNKNOWN
    tokens, kinds = _in_order(entries)
    scores, steps = rank_scores(tokens, kinds), from_tokenizers_json(content)
    return Vocabulary("wordpiece", "wordpiece", None, tokens, kinds, scores, (), steps, _special_handling(content))


def _entries(ids: dict[str, int], entry_of: Callable[[str], Entry], content: dict[str, Any]) -> dict[int, Entry]:
    """The model's pieces and the added tokens by id. Raises ValueError if two share an id."""
    added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
    entries = {i: entry_of(piece) for piece, i in ids.items() if added.get(piece) != i}
    if len({*ids.values(), *added.values()}) < len(ids.items() | added.items()):  # fewer ids than (token, id) pairs
        raise ValueError("two of its tokens have the same id")
    for token in content.get("added_tokens", []):
        entries[token["id"]] = token["content"].encode(), _kind_of_added(token)
    return entries


def _kind_of_added(token: dict[str, Any]) -> Kind:
    """ADDED for text, such as a run of blanks; CONTROL for a special token, or a name that looks so, as `<think>`."""
    name = token["content"]
    if name.startswith(UNUSED_PREFIX):
        return Kind.UNUSED
    return Kind.CONTROL if token.get("special", True) or SPECIAL_NAME.fullmatch(name) else Kind.ADDED


def _special_handling(content: dict[str, Any], *, with_post_processor: bool = False) -> str | None:
    """The flags of added tokens that are not the defaults, and the post-processor."""
    flags = {}
    for token in content.get("added_tokens", []):
        flags[token["content"]] = {flag: True for flag in FLAGS if token.get(flag)}
        if not token.get("special", True) and _kind_of_added(token) != Kind.ADDED:  # of ADDED, that is the default
            flags[token["content"]]["special"] = False
    post_processor = content.get("post_processor")
    moves_offsets_only = all(step["type"] == "ByteLevel" for step in flat("post_processor", post_processor))
    return to_special_handling(flags, post_processor if with_post_processor and not moves_offsets_only else None)


def _in_order(entries: dict[int, Entry]) -> tuple[tuple[bytes, ...], tuple[Kind, ...]]:
    """Tokens and kinds by id. Raises ValueError for a gap."""
    if missing := set(range(len(entries))) - entries.keys():
        raise ValueError(f"no token has the id {min(missing)}")
    tokens, kinds = zip(*(entries[i] for i in range(len(entries))), strict=True)
    return tokens, kinds


def _splits(pre_tokenizer: dict[str, Any] | None) -> tuple[list[dict[str, Any]], str | None]:
    """The steps that split text before the pattern, and the pattern. Raises ValueError unless ByteLevel is the last."""
    *before, last = [*flat("pre_tokenizer", pre_tokenizer)] or [{}]
    if last.get("type") != "ByteLevel":
        raise ValueError(f"its pre_tokenizer does not end with ByteLevel, but with {last.get('type')!r:.40}")
    if last.get("add_prefix_space", True):
        raise ValueError("it puts a space before text that has none (add_prefix_space): 'a' becomes ' a'")
    pattern: str | None = PATTERNS["gpt2"] if last.get("use_regex", True) else None
    match before:
        case [*others, {"type": "Split", "pattern": {"Regex": str(found)}, "behavior": "Isolated", "invert": False}]:
            before, pattern = (others, found) if pattern is None else (before, pattern)
    if before == [{"type": "Digits", "individual_digits": True}] and pattern == PATTERNS["gpt2"]:
        return [], DIGITS_THEN_GPT2
    for step in before:
        if not keeps_characters(step):
            raise ValueError(f"its pre_tokenizer {step['type']!r:.40} removes characters, such as the space in 'a b'")
    return before, pattern


def _merges(model: dict[str, Any], ids: dict[str, int]) -> tuple[MergePair, ...]:
    pairs: list[MergePair] = []
    for rank, merge in enumerate(model.get("merges", [])):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or not all(part in ids for part in (*parts, "".join(parts))):
            raise ValueError(f"its merge {rank}, {merge!r:.80}, is not of two tokens that make a third one")
        pairs.append((ids[parts[0]], ids[parts[1]]))
    return tuple(pairs)
