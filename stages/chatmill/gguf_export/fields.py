"""The fields of a GGUF file: the shape of the model, its tokenizer and its weights, and what none can express."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    TokenType,
    get_tensor_name_map,
    quants,
)
from numpy.typing import NDArray
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.checkpoints.weights import Weights, first_few
from chatmill.model.layers import scale_rope_frequencies
from chatmill.pipeline.progress import log
from chatmill.tokenizer.encoding.backends import choose_backend
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.exporting.exports import differing_text, make_rank_encoder
from chatmill.tokenizer.formats.gguf_files import LLAMA3, PRE_TOKENIZERS
from chatmill.tokenizer.vocabulary.sentencepiece_model import PIECE_TYPES, sentencepiece_unsupported_reason, unknown_id
from chatmill.tokenizer.vocabulary.tokenizer_json import unmerged
from chatmill.tokenizer.vocabulary.vocabulary import NO_RANK, Kind, Vocabulary, id_to_piece

Quantization = Literal["f16", "q8_0", "q4_0"]
FileType = Literal["f32", "f16", "q8_0", "q4_0"]
REMEDY = "transformers reads the model's folder; export_onnx and export_tokenizer write other formats"


class UnsupportedModel(ValueError):
    """A model that llama.cpp would not run as chatmill does: the reason, and a text that shows it."""

    def __init__(self, reason: str, example: str | None = None) -> None:
        self.reason, self.example = reason, example
        shown = "" if example is None else f", as in {example!r:.80}"
        super().__init__(f"GGUF cannot express it: {reason}{shown}: {REMEDY}")


# The shape of a model in the fields of a GGUF file: of the architectures qwen3, qwen2 and llama of llama.cpp.


def architecture(config: ModelConfig) -> MODEL_ARCH:
    """The architecture of llama.cpp that a shape belongs to. Raises UnsupportedModel where it has none."""
    variant = config.variant
    if not (variant.qk_norm or variant.qkv_bias != variant.output_bias):
        return MODEL_ARCH.LLAMA
    arch = MODEL_ARCH.QWEN3 if variant.qk_norm else MODEL_ARCH.QWEN2
    name = MODEL_ARCH_NAMES[arch]
    if variant.output_bias or variant.mlp_bias:
        raise UnsupportedModel(f"{name} has no biases after attention in llama.cpp")
    if variant.rope_scaling and variant.rope_scaling.original_max_position_embeddings:
        raise UnsupportedModel(f"{name} has no rope_type llama3 in llama.cpp")
    if arch == MODEL_ARCH.QWEN2 and config.num_attention_heads * config.head_dim != config.hidden_size:
        reason = f"in llama.cpp, head_dim of {name} is hidden_size / num_attention_heads, and here {config.head_dim}"
        raise UnsupportedModel(reason)
    return arch


def add_hyperparameters(writer: GGUFWriter, config: ModelConfig) -> None:
    """Add the shape; llama.cpp sees all earlier tokens, so that a context ends with the sliding window."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.variant.sliding_window or config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    scaling = config.variant.rope_scaling
    if scaling and not scaling.original_max_position_embeddings:  # that of Llama 3 is a tensor
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
    writer.add_vocab_size(config.vocab_size)


# The tokenizer in the fields of a GGUF file.


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
    writer.add_token_types([PIECE_TYPES[kind] for kind in vocabulary.kinds] + [TokenType.UNUSED] * num_missing)
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
            raise UnsupportedModel("llama.cpp's WordPiece is BERT's, which drops blanks", "a  b")
        case "viterbi", _:
            reason = "llama.cpp's Unigram has no byte fallback: a character without a token becomes one unknown token"
            boxes = (char for char in map(chr, range(0x2500, 0x2600)) if char.encode() not in vocabulary.tokens)
            raise UnsupportedModel(reason, next(boxes, None))
        case _, "marked":
            _check_sentencepiece(vocabulary)
            return "llama", "default"
        case "lookup", _ if not vocabulary.has_longer_tokens:
            return "gpt2", "gpt-2"  # bytes, of which no pattern makes anything else
    return "gpt2", _pre_tokenizer(vocabulary)


def _pre_tokenizer(vocabulary: Vocabulary) -> str:
    name = PRE_TOKENIZERS.get(vocabulary.pattern or "") if vocabulary.steps is None else None
    if name is None or vocabulary.algorithm == "lookup":
        reason = f"llama.cpp does not split text as the type {vocabulary.type} with this pattern does"
        raise UnsupportedModel(reason, _differently_split(vocabulary))
    if name != LLAMA3 and (lost := unmerged(vocabulary)):  # for llama3, llama.cpp takes a whole token without merging
        reason = "llama.cpp merges pairs, which does not give some tokens"
        raise UnsupportedModel(reason, vocabulary.tokens[lost[0]].decode(errors="replace"))
    return name


def _differently_split(vocabulary: Vocabulary) -> str | None:
    others = [replace(vocabulary, pattern=pattern, steps=None) for pattern in PRE_TOKENIZERS]
    encode, *encoders = (choose_backend(one).encode_one for one in (vocabulary, *others))

    def nearest(text: str) -> list[int]:
        expected, found = encode(text), [other(text) for other in encoders]
        return expected if expected in found else found[0]

    return differing_text(vocabulary, nearest)


def _check_sentencepiece(vocabulary: Vocabulary) -> None:
    """Raise UnsupportedModel where SentencePiece would merge other pairs, or the name of a token that is no text."""
    if (reason := sentencepiece_unsupported_reason(vocabulary)) is not None:
        example = differing_text(vocabulary, make_rank_encoder(vocabulary, None))
        raise UnsupportedModel(reason, example)
    texts = {id_to_piece(vocabulary, i) for i, kind in enumerate(vocabulary.kinds) if kind == Kind.NORMAL}
    others = (id_to_piece(vocabulary, i) for i, kind in enumerate(vocabulary.kinds) if kind != Kind.NORMAL)
    for name in others:
        if any(name[:cut] in texts and name[cut:] in texts for cut in range(1, len(name))):
            raise UnsupportedModel("llama.cpp merges two tokens into the name of a third one", name)


def _pieces(vocabulary: Vocabulary, vocab_size: int) -> list[str]:
    missing = vocab_size - len(vocabulary.tokens)
    if missing < 0:
        raise ValueError(f"the tokenizer has {len(vocabulary.tokens)} tokens, and the model {vocab_size}: use its own")
    pieces = [id_to_piece(vocabulary, i) for i in range(len(vocabulary.tokens))]
    pieces += [f"[PAD{i}]" for i in range(len(pieces), vocab_size)]
    seen: set[str] = set()
    for piece in pieces:
        if piece in seen:
            raise UnsupportedModel("two of its tokens are spelled alike", piece)
        seen.add(piece)
    return pieces


# The weights in a GGUF file: their names, the order of their rows, and their types.

ROPE_FREQUENCIES = "rope_freqs.weight"


class GGUFTensor(NamedTuple):
    """A tensor by its GGUF name; `heads` is 0, or the number of heads whose rows llama.cpp rotates in pairs."""

    name: str
    weight: Tensor  # (N, C) or (N,), memory-mapped
    heads: int = 0

    def type(self, file_type: FileType) -> GGMLQuantizationType:
        """The type in a file: float32 for vectors, float16 for rows that no number of blocks fills."""
        kind = GGMLQuantizationType[file_type.upper()]
        if self.weight.ndim == 1:
            return GGMLQuantizationType.F32
        block, _ = GGML_QUANT_SIZES[kind]
        return GGMLQuantizationType.F16 if self.weight.shape[-1] % block else kind

    def content(self) -> NDArray[np.float32]:
        """The numbers, in the order of llama.cpp: (H * 2 * D/2, C) -> (H * D/2 * 2, C) where it rotates pairs."""
        values: NDArray[np.float32] = self.weight.to(torch.float32).numpy()
        if not self.heads:
            return values
        halves = values.reshape(self.heads, 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def gguf_tensors(config: ModelConfig, arch: MODEL_ARCH, weights: Weights) -> Iterator[GGUFTensor]:
    """The tensors of a model, by the names of Hugging Face, for an architecture of llama.cpp."""
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in weights.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, f"{name}: no tensor of these families"
        yield GGUFTensor(gguf_name, weight, heads.get(name.split(".")[-2], 0) if arch == MODEL_ARCH.LLAMA else 0)
    scaling = config.variant.rope_scaling
    if scaling and scaling.original_max_position_embeddings:
        frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        yield GGUFTensor(ROPE_FREQUENCIES, frequencies / scale_rope_frequencies(frequencies, scaling))


def write_tensors(writer: GGUFWriter, tensors: list[GGUFTensor], file_type: FileType) -> None:
    for tensor in tensors:
        kind, shape = tensor.type(file_type), tuple(tensor.weight.shape)
        is_blocks = kind.name.startswith("Q")
        stored = quants.quant_shape_to_byte_shape(shape, kind) if is_blocks else shape
        dtype = np.dtype(np.uint8 if is_blocks else kind.name.replace("F", "float"))
        writer.add_tensor_info(tensor.name, stored, dtype, math.prod(stored) * dtype.itemsize, raw_dtype=kind)
    other = [t.name for t in tensors if t.weight.ndim > 1 and t.type(file_type).name.lower() != file_type]
    if other:
        log("export_gguf", f"{file_type}: {len(other)} matrices are f16, whose rows are no blocks: {first_few(other)}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(quants.quantize(tensor.content(), tensor.type(file_type)))
