"""The tokenizer in the fields of a GGUF file.

llama.cpp has its algorithms and split patterns in C++ (src/llama-vocab.cpp), and a file only names them:

    tokenizer.ggml.model   gpt2: pairs of bytes are merged by rank; llama: of characters, by score, as in SentencePiece
    tokenizer.ggml.pre     qwen2: the pattern that splits the text

A tokenizer that llama.cpp would run otherwise is refused, with a text to which it would give other ids.
"""

from dataclasses import replace

from gguf import GGUFWriter, TokenType

from chatmill.gguf_export.unsupported import UnsupportedModel
from chatmill.gguf_import.pre_tokenizers import LLAMA3, PRE_TOKENIZERS
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.exporting.exports import differing_text, make_rank_encoder
from chatmill.tokenizer.formats.reference_encoder import ReferenceEncoder
from chatmill.tokenizer.vocabulary.sentencepiece_model import sentencepiece_unsupported_reason, unknown_id
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece, unmerged
from chatmill.tokenizer.vocabulary.vocabulary import NO_RANK, Kind, Vocabulary

TOKEN_TYPES = {
    Kind.NORMAL: TokenType.NORMAL,
    Kind.FALLBACK: TokenType.BYTE,
    Kind.CONTROL: TokenType.CONTROL,
    Kind.UNUSED: TokenType.UNUSED,
    Kind.UNKNOWN: TokenType.UNKNOWN,
    Kind.ADDED: TokenType.USER_DEFINED,
}
REMEDY = "transformers reads the model's folder; export_onnx and export_tokenizer write other formats"


def add_tokenizer(writer: GGUFWriter, tokenizer: ChatTokenizer, vocab_size: int) -> None:
    """Add the tokens up to the size of the model's vocabulary, and how text becomes tokens.

    Raises UnsupportedModel for a tokenizer that llama.cpp has not.
    """
    vocabulary = tokenizer.vocabulary
    model, pre_tokenizer = algorithm(vocabulary)
    pieces = _pieces(vocabulary, vocab_size)
    num_missing = vocab_size - len(vocabulary.tokens)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(pieces)
    writer.add_token_types([TOKEN_TYPES[kind] for kind in vocabulary.kinds] + [TokenType.UNUSED] * num_missing)
    if model == "llama":
        writer.add_token_scores([*vocabulary.scores, *[NO_RANK] * num_missing])
        writer.add_unk_token_id(unknown_id(vocabulary))
    else:  # an empty list is not written, and a file without merges not read: an empty merge joins nothing
        writer.add_token_merges([f"{pieces[left]} {pieces[right]}" for left, right in vocabulary.merges] or [""])
    writer.add_add_space_prefix(tokenizer.leading_space)


def algorithm(vocabulary: Vocabulary) -> tuple[str, str]:
    """llama.cpp's names of the algorithm and of the pre-tokenizer. Raises UnsupportedModel where it has none."""
    match vocabulary.algorithm, vocabulary.spelling:
        case "wordpiece", _:
            raise UnsupportedModel("llama.cpp's WordPiece is BERT's, which drops blanks", "a  b", remedy=REMEDY)
        case "viterbi", _:
            reason = "llama.cpp's Unigram has no byte fallback: a character without a token becomes one unknown token"
            raise UnsupportedModel(reason, _character_without_token(vocabulary), remedy=REMEDY)
        case _, "marked":
            _check_sentencepiece(vocabulary)
            return "llama", "default"
        case "lookup", _ if all(len(vocabulary.tokens[i]) == 1 for i in vocabulary.text_ids):
            return "gpt2", "gpt-2"  # bytes, of which no pattern makes anything else
    return "gpt2", _pre_tokenizer(vocabulary)


def _pre_tokenizer(vocabulary: Vocabulary) -> str:
    """The name of the split pattern of a byte-level tokenizer."""
    name = PRE_TOKENIZERS.get((vocabulary.pattern or "", vocabulary.steps))
    if name is None or vocabulary.algorithm == "lookup":
        reason = f"llama.cpp does not split text as the type {vocabulary.type} with this pattern does"
        raise UnsupportedModel(reason, _differently_split(vocabulary), remedy=REMEDY)
    if name != LLAMA3 and (lost := unmerged(vocabulary)):
        reason = "llama.cpp merges pairs, which does not give some tokens"
        raise UnsupportedModel(reason, vocabulary.tokens[lost[0]].decode(errors="replace"), remedy=REMEDY)
    return name


def _differently_split(vocabulary: Vocabulary) -> str | None:
    """A text that no pattern of llama.cpp splits as the vocabulary's."""
    others = [replace(vocabulary, pattern=pattern, steps=steps) for pattern, steps in PRE_TOKENIZERS]
    encode, encoders = ReferenceEncoder(vocabulary).encode, [ReferenceEncoder(other).encode for other in others]

    def nearest(text: str) -> list[int]:
        expected, found = encode(text), [other(text) for other in encoders]
        return expected if expected in found else found[0]

    return differing_text(vocabulary, nearest)


def _character_without_token(vocabulary: Vocabulary) -> str | None:
    tokens = set(vocabulary.tokens)
    return next((char for char in map(chr, range(0x2500, 0x2600)) if char.encode() not in tokens), None)


def _check_sentencepiece(vocabulary: Vocabulary) -> None:
    """Raise UnsupportedModel where SentencePiece would merge other pairs, or the name of a token that is no text."""
    if (reason := sentencepiece_unsupported_reason(vocabulary)) is not None:
        example = differing_text(vocabulary, make_rank_encoder(vocabulary, None))
        raise UnsupportedModel(reason, example, remedy=REMEDY)
    texts = {id_to_piece(vocabulary, i) for i, kind in enumerate(vocabulary.kinds) if kind == Kind.NORMAL}
    others = (id_to_piece(vocabulary, i) for i, kind in enumerate(vocabulary.kinds) if kind != Kind.NORMAL)
    for name in others:
        if any(name[:cut] in texts and name[cut:] in texts for cut in range(1, len(name))):
            raise UnsupportedModel("llama.cpp merges two tokens into the name of a third one", name, remedy=REMEDY)


def _pieces(vocabulary: Vocabulary, vocab_size: int) -> list[str]:
    """The tokens as GGUF spells them; llama.cpp finds a token by its spelling alone."""
    missing = vocab_size - len(vocabulary.tokens)
    if missing < 0:
        raise ValueError(f"the tokenizer has {len(vocabulary.tokens)} tokens, and the model {vocab_size}: use its own")
    pieces = [id_to_piece(vocabulary, i) for i in range(len(vocabulary.tokens))]
    pieces += [f"[PAD{i}]" for i in range(len(pieces), vocab_size)]
    seen: set[str] = set()
    for piece in pieces:
        if piece in seen:
            raise UnsupportedModel("two of its tokens are spelled alike", piece, remedy=REMEDY)
        seen.add(piece)
    return pieces
