"""tokenizer.model: SentencePiece's own file, a protocol buffer of pieces with their scores.

Pieces stand in the order of their ids: bytes and text, then control tokens, then unused ones, the first of which is
SentencePiece's piece for unknown text; with a piece for every byte, it never occurs.
"""

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from chatmill.tokenizer.tokenizer_json import piece_of
from chatmill.tokenizer.vocabulary import Kind, Vocabulary

_PIECE = ModelProto.SentencePiece
_TYPES = {
    Kind.NORMAL: _PIECE.NORMAL,
    Kind.FALLBACK: _PIECE.BYTE,
    Kind.CONTROL: _PIECE.CONTROL,
    Kind.UNUSED: _PIECE.UNUSED,
}


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
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return model.SerializeToString(deterministic=True)
