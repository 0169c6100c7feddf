"""tokenizer.model: SentencePiece's own file, a protocol buffer of pieces with their scores.

Pieces are in the order of their ids: in chatmill's own files bytes and text, then control tokens, then unused ones. The
first unused one is SentencePiece's unknown piece, which never occurs, because every byte has a piece.
"""

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, library_of, normalizer_steps, to_normalizer_spec
from chatmill.tokenizer.vocabulary.vocabulary import (
    NO_RANK,
    UNUSED_PREFIX,
    AddedToken,
    Kind,
    MergePair,
    Vocabulary,
    id_to_piece,
    rank_scores,
    sentencepiece_entry,
)

_PIECE = ModelProto.SentencePiece
PIECE_TYPES = {  # GGUF has the same numbers
    Kind.NORMAL: _PIECE.NORMAL,
    Kind.FALLBACK: _PIECE.BYTE,
    Kind.CONTROL: _PIECE.CONTROL,
    Kind.UNUSED: _PIECE.UNUSED,
    Kind.UNKNOWN: _PIECE.UNKNOWN,
    Kind.ADDED: _PIECE.USER_DEFINED,
}
_KINDS = {type: kind for kind, type in PIECE_TYPES.items()}


def sentencepiece_unsupported_reason(vocabulary: Vocabulary) -> str | None:
    """Why SentencePiece cannot express the vocabulary; None if it can."""
    if vocabulary.spelling != "marked":
        return f"a {vocabulary.type} tokenizer is not a SentencePiece model"
    if not {Kind.UNKNOWN, Kind.UNUSED} & set(vocabulary.kinds):
        return "SentencePiece needs an id for unknown text, and this tokenizer has no unused one"
    merges = _merges(vocabulary.tokens, vocabulary.kinds, vocabulary.scores)
    if vocabulary.algorithm == "merge" and merges != vocabulary.merges:
        return "SentencePiece merges every pair that makes a token, and this tokenizer only those of its list"
    if any(token != AddedToken(token.content, token.id) for token in vocabulary.added_tokens):
        return "SentencePiece has no flags of user-defined pieces"
    if vocabulary.steps is not None and library_of(vocabulary.steps)[0] != "sentencepiece":
        return "its preprocessing is not SentencePiece's"
    return None


def to_model_proto(vocabulary: Vocabulary) -> bytes:
    """The file's content. Raises ValueError for preprocessing that is not SentencePiece's."""
    model = ModelProto(normalizer_spec=to_normalizer_spec(vocabulary.steps))
    for i, (kind, score) in enumerate(zip(vocabulary.kinds, vocabulary.scores, strict=True)):
        piece = id_to_piece(vocabulary, i)
        written = piece.replace(" ", METASPACE) if kind == Kind.ADDED else piece
        model.pieces.add(piece=written, score=score, type=PIECE_TYPES[kind])
    unknown = unknown_id(vocabulary)
    model.pieces[unknown].type = _PIECE.UNKNOWN
    spec = model.trainer_spec
    spec.model_type = TrainerSpec.UNIGRAM if vocabulary.algorithm == "viterbi" else TrainerSpec.BPE
    spec.vocab_size = len(vocabulary.tokens)
    spec.byte_fallback = Kind.FALLBACK in vocabulary.kinds
    spec.unk_id = unknown
    spec.bos_id, spec.eos_id, spec.pad_id = (vocabulary.special.get(name, -1) for name in ("<s>", "</s>", "<pad>"))
    spec.unk_piece = model.pieces[unknown].piece
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def unknown_id(vocabulary: Vocabulary) -> int:
    """The id for unknown text: the vocabulary's own, or the first unused one."""
    return vocabulary.kinds.index(Kind.UNKNOWN if Kind.UNKNOWN in vocabulary.kinds else Kind.UNUSED)


def read_sentencepiece_model(file: Path) -> Vocabulary:
    """The vocabulary of a model file. Raises ValueError if it is damaged or not supported."""
    try:
        model = ModelProto.FromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError(f"not a SentencePiece model: {error}") from error
    return from_model_proto(model)


def from_model_proto(model: ModelProto, *, is_own: bool = False) -> Vocabulary:
    """The vocabulary of a model. Raises ValueError if it is damaged or not supported.

    U+2581 in text is a space in the models of other programs, which have none of our names of unused ids.
    """
    normalizer, kind = model.normalizer_spec, model.trainer_spec.model_type
    is_supported = kind in (TrainerSpec.UNIGRAM, TrainerSpec.BPE) and normalizer.escape_whitespaces and model.pieces
    if not is_supported or model.trainer_spec.treat_whitespace_as_suffix:
        raise ValueError("it is not a unigram or BPE model that writes spaces as U+2581, before words")
    tokens, kinds = zip(*map(_entry, model.pieces), strict=True)
    has_bytes = Kind.FALLBACK in kinds
    if has_bytes != model.trainer_spec.byte_fallback or not (has_bytes or Kind.UNKNOWN in kinds):
        raise ValueError("its byte pieces and byte_fallback do not agree, or it has no piece for unknown text")
    is_own = is_own or any(token.startswith(UNUSED_PREFIX.encode()) for token in tokens)
    changes = normalizer.precompiled_charsmap or normalizer.add_dummy_prefix or normalizer.remove_extra_whitespaces
    steps = normalizer_steps(normalizer) if changes or not is_own else None
    if kind == TrainerSpec.UNIGRAM:
        scored = zip(model.pieces, kinds, strict=True)
        scores = tuple(piece.score if kind < Kind.FALLBACK else NO_RANK for piece, kind in scored)
        return Vocabulary("sentencepiece", "viterbi", None, tokens, kinds, scores, steps=steps)
    entries = list(zip(tokens, kinds, strict=True))
    if any(kind == Kind.UNUSED and not token.startswith(UNUSED_PREFIX.encode()) for token, kind in entries):
        raise ValueError("it has unused pieces, which SentencePiece still merges into others")
    texts = {token.decode() for token, kind in entries if kind == Kind.NORMAL}
    if lost := next((text for text in texts if not texts.issuperset(text)), None):
        raise ValueError(f"its piece {lost!r:.80} has a character that is not a piece")
    merges = _merges(tokens, kinds, [piece.score for piece in model.pieces])
    return Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds, merges), merges, steps)


def _entry(piece: ModelProto.SentencePiece) -> tuple[bytes, Kind]:
    kind = _KINDS[piece.type]
    if kind in (Kind.NORMAL, Kind.ADDED) and " " in piece.piece:
        raise ValueError(f"its piece {piece.piece!r:.80} contains a space, which is written as U+2581")
    if kind == Kind.ADDED:
        return piece.piece.replace(METASPACE, " ").encode(), kind
    if kind == Kind.UNKNOWN and piece.piece.startswith(UNUSED_PREFIX):
        kind = Kind.UNUSED
    return (piece.piece.encode(), kind) if kind >= Kind.CONTROL else sentencepiece_entry(piece.piece)


def _merges(tokens: Sequence[bytes], kinds: Sequence[Kind], scores: Sequence[float]) -> tuple[MergePair, ...]:
    """Every pair of tokens that makes another, the best score first, as SentencePiece merges them."""
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == Kind.NORMAL}
    merges: list[MergePair] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += sorted((ids[left], ids[right]) for left, right in splits if left in ids and right in ids)
    return tuple(merges)
