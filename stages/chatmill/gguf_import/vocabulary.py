"""The tokenizer in a GGUF file: what gguf_export.tokenizer_fields writes, and other programs' files of these kinds."""

from dataclasses import replace
from typing import Any

from gguf import TokenType
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from chatmill.gguf_import.pre_tokenizers import ALIASES, LLAMA3, PRE_TOKENIZERS
from chatmill.tokenizer.formats.validation import check_vocabulary
from chatmill.tokenizer.vocabulary.added_tokens import FLAGS
from chatmill.tokenizer.vocabulary.patterns import ANYTHING
from chatmill.tokenizer.vocabulary.preprocessing import normalizer_steps, to_normalizer_spec, to_tokenizers_json
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.steps import METASPACE, flat
from chatmill.tokenizer.vocabulary.tokenizer_json_reader import from_json
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

FIELD, TOKENIZER_TYPE = "tokenizer.ggml.", "chatmill.tokenizer_type"
PATTERNS = {name: pair for pair, name in reversed(PRE_TOKENIZERS.items())}  # of two with one name, the first
MAX_TOKENS = 1 << 20


def read_vocabulary(fields: dict[str, Any]) -> Vocabulary:
    """The vocabulary. Raises ValueError for a kind of tokenizer that chatmill does not have, or a damaged one."""
    tokens, types = fields.get(f"{FIELD}tokens"), fields.get(f"{FIELD}token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or not 0 < len(tokens) == len(types) <= MAX_TOKENS:
        raise ValueError(f"expected up to {MAX_TOKENS:,} {FIELD}tokens, and as many {FIELD}token_type")
    if not all(isinstance(token, str) for token in tokens) or not set(types) <= set(TokenType):
        raise ValueError(f"{FIELD}tokens are not texts, or {FIELD}token_type has an unknown type")
    try:
        match fields.get(f"{FIELD}model"):
            case "gpt2":
                vocabulary = _byte_level(fields, tokens, types)
            case "llama":
                vocabulary = _sentencepiece(fields, tokens, types)
            case other:
                raise ValueError(f"{FIELD}model {other!r:.80}: expected gpt2 or llama")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a tokenizer that chatmill can read: {error!r:.200}") from error
    check_vocabulary(vocabulary)
    return vocabulary


def _byte_level(fields: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    """Through the content of the tokenizer.json that has these tokens."""
    given = str(fields.get(f"{FIELD}pre"))
    pre = ALIASES.get(given, given)
    pattern, steps = PATTERNS.get(pre, ("", None))
    if not pattern:
        known = ", ".join(sorted({*PATTERNS, *ALIASES}))
        raise ValueError(f"{FIELD}pre {given!r:.80}: its split pattern is not known: expected one of {known}")
    merges = [merge for merge in fields.get(f"{FIELD}merges") or [] if merge]
    splits = [] if steps is None else flat("pre_tokenizer", to_tokenizers_json(steps)["pre_tokenizer"])
    regex = {"Regex": pattern if merges else ANYTHING}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    is_text = [type == TokenType.NORMAL for type in types]
    ids = {token: i for i, token in enumerate(tokens) if is_text[i]}
    if len(ids) < sum(is_text):
        raise ValueError("it has a token twice")
    added = [
        {"id": i, "content": token, "special": types[i] != TokenType.USER_DEFINED} | dict.fromkeys(FLAGS, False)
        for i, token in enumerate(tokens)
        if not is_text[i]
    ]
    ignore_merges = not merges or pre == LLAMA3
    content = {
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, split, byte_level]},
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "ignore_merges": ignore_merges},
    }
    type_name = fields.get(TOKENIZER_TYPE)
    vocabulary = from_json(content, type_name if isinstance(type_name, str) else None)
    unused = (Kind.UNUSED if type == TokenType.UNUSED else None for type in types)
    kinds = tuple(other or kind for kind, other in zip(vocabulary.kinds, unused, strict=True))
    return replace(vocabulary, kinds=kinds)


def _sentencepiece(fields: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    """Through the SentencePiece model that has these pieces, whose types have the same numbers."""
    spec = to_normalizer_spec(None)
    spec.add_dummy_prefix = bool(fields.get(f"{FIELD}add_space_prefix", True))
    model = ModelProto(normalizer_spec=spec)
    model.trainer_spec.model_type = TrainerSpec.BPE
    model.trainer_spec.byte_fallback = TokenType.BYTE in types
    for token, type, score in zip(tokens, types, fields[f"{FIELD}scores"], strict=True):
        piece = token.replace(" ", METASPACE) if type == TokenType.USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=type)
    vocabulary = from_model_proto(model)
    if vocabulary.steps is None and not vocabulary.has_unused_names:  # another program's: U+2581 is a space
        return replace(vocabulary, steps=normalizer_steps(spec))
    return vocabulary
