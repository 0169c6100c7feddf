"""tokenizer.model: SentencePiece's own file, a protocol buffer of pieces with their scores.

Pieces stand in the order of their ids: bytes and text, then control tokens, then unused ones, the first of which is
SentencePiece's piece for unknown text; with a piece for every byte, it never occurs.
"""

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec

from chatmill.tokenizer.tokenizer_json import piece_of, sentencepiece_entry
from chatmill.tokenizer.vocabulary import NO_RANK, Kind, Pair, Vocabulary, rank_scores

_PIECE = ModelProto.SentencePiece
_TYPES = {
    Kind.NORMAL: _PIECE.NORMAL,
    Kind.FALLBACK: _PIECE.BYTE,
    Kind.CONTROL: _PIECE.CONTROL,
    Kind.UNUSED: _PIECE.UNUSED,
}
_KINDS = {type: kind for kind, type in _TYPES.items()} | {_PIECE.UNKNOWN: Kind.UNUSED}
_IDENTITY = NormalizerSpec(
    name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, escape_whitespaces=True
)


def to_model(vocabulary: Vocabulary) -> bytes:
    """The file's content."""
    model = ModelProto()
    for i, (kind, score) in enumerate(zip(vocabulary.kinds, vocabulary.scores, strict=True)):
        model.pieces.add(piece=piece_of(vocabulary, i), score=score, type=_TYPES[kind])
    unknown = vocabulary.kinds.index(Kind.UNUSED)
    model.pieces[unknown].type = _PIECE.UNKNOWN
    spec = model.trainer_spec
    spec.model_type = TrainerSpec.UNIGRAM if vocabulary.algorithm == "viterbi" else TrainerSpec.BPE
    spec.vocab_size = len(vocabulary.tokens)
    spec.byte_fallback = True
    spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = unknown, -1, -1, -1
    spec.unk_piece = model.pieces[unknown].piece
    model.normalizer_spec.CopyFrom(_IDENTITY)
    return model.SerializeToString(deterministic=True)


def read_model(file: Path) -> Vocabulary:
    """The vocabulary of a model that takes text as it is. Raises ValueError for others."""
    try:
        return from_model(ModelProto.FromString(file.read_bytes()))
    except DecodeError as error:
        raise ValueError(f"{file}: not a SentencePiece model: {error}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def from_model(model: ModelProto) -> Vocabulary:
    """The vocabulary in a model. Raises ValueError where it changes text, or cannot take every text."""
    normalizer = model.normalizer_spec
    if normalizer.name != "identity" or normalizer.add_dummy_prefix or normalizer.remove_extra_whitespaces:
        raise ValueError("it changes the text (normaliser, dummy prefix, blanks): use one that keeps every character")
    tokens, kinds = zip(*map(_entry, model.pieces), strict=True)
    if kinds.count(Kind.FALLBACK) != 256:
        raise ValueError("it has no pieces for bytes, so it cannot take every text: train it with byte_fallback")
    if model.trainer_spec.model_type == TrainerSpec.UNIGRAM:
        scores = tuple(
            piece.score if kind < Kind.FALLBACK else NO_RANK for piece, kind in zip(model.pieces, kinds, strict=True)
        )
        return Vocabulary("sentencepiece", "viterbi", None, tokens, kinds, scores)
    merges = _merges(tokens, kinds)
    return Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds, merges), merges)


def _entry(piece: _PIECE) -> tuple[bytes, Kind]:
    if piece.type not in _KINDS:
        raise ValueError(f"its piece {piece.piece!r} is user-defined, which only SentencePiece knows")
    kind = _KINDS[piece.type]
    return (piece.piece.encode(), kind) if kind >= Kind.CONTROL else sentencepiece_entry(piece.piece)


def _merges(tokens: Sequence[bytes], kinds: Sequence[Kind]) -> tuple[Pair, ...]:
    """Every pair of tokens that makes another: SentencePiece joins whatever gives the best piece."""
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == Kind.NORMAL}
    merges: list[Pair] = []
    for token in ids:
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += sorted((ids[left], ids[right]) for left, right in splits if left in ids and right in ids)
    return tuple(merges)
