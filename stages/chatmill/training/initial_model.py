"""A model from which training starts: of an earlier run of the pipeline, or a Llama, Mistral, Qwen2 or Qwen3.

Training has a tokenizer of its own, so the model's embedding is remapped by tokens: each gets the row that it has in
the model, whatever its id there. A control token that the model lacks gets the row of the model's token for the same
purpose, and a token without a row starts near the mean of all rows.

Shapes: V vocabulary, C channels.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from chatmill.checkpoints.weights import weight_files
from chatmill.model.chat_model import INITIAL_ROTARY_POSITIONS, ChatModel
from chatmill.model.checkpoint_loading import CONFIG, EMBEDDING, HEAD, load_chat_model, stand_ins
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest
from chatmill.tokenizer.formats.tokenizer_loading import IN_FOLDERS, files_of, read_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, use_byte_embedding
from chatmill.training.model_folder import ENCODER_FILE, read_byte_encoder

MIN_KNOWN_FRACTION = 0.5  # of the text tokens that the model must have
NOISE = 0.1  # of the rows' standard deviation: it separates the rows of tokens that the model lacks

EmbeddingRow = int | None  # index into the model's embedding; None for a token that it lacks


def load_initial(
    path: Path, vocabulary: Vocabulary, context: int, embedding: Literal["table", "bytes"] = "table"
) -> ChatModel:
    """The model in a folder, in float32, with a row for each token of the vocabulary; it keeps its own context.

    Its embeddings are computed from bytes if `embedding` says so. Raises ValueError where the folder is missing or
    damaged, the model is no variant of ours or has a shorter context, its tokenizer has little in common with the
    vocabulary, or it has no byte encoder to compute embeddings.
    """
    _check_folder(path)
    check_manifest(path)
    model, content = load_chat_model(path, torch.device("cpu"))
    config = model.config
    if context > config.max_position_embeddings:
        most = config.max_position_embeddings
        raise ValueError(f"{path}: train_model.context: expected at most {most}, the model's, got {context}")
    rows = matching_rows(vocabulary, read_vocabulary(path), content, config.vocab_size)
    encoder = _encoder(path, config.hidden_size) if embedding == "bytes" else None
    if encoder is None:  # a byte encoder has rows for all tokens
        _check_share(vocabulary, rows, path)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}  # the file's are left as they are
    for name in weights.keys() & {f"model.{EMBEDDING}", HEAD}:
        weights[name] = remap_embedding(weights[name], rows)
    with torch.device("meta"):
        grown = ChatModel(replace(config, vocab_size=len(rows)))
    grown.load_state_dict(weights, assign=True)
    grown.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    if encoder is not None:
        use_byte_embedding(grown, encoder, vocabulary)
    return grown


def initial_files(path: Path) -> list[Path]:
    """The files that identify an initial model: its manifest, or its configuration, weights and tokenizer."""
    _check_folder(path)
    if (path / MANIFEST_NAME).is_file():
        return [path / MANIFEST_NAME]
    tokenizer = next((files_of(path / name) for name in IN_FOLDERS if (path / name).is_file()), [])
    return [path / CONFIG, *weight_files(path), *tokenizer]


def matching_rows(
    vocabulary: Vocabulary, model_vocabulary: Vocabulary, content: dict[str, Any], num_rows: int
) -> list[EmbeddingRow]:
    """The row of each token in a model of `num_rows` rows with its own vocabulary; `content` is its config.json."""
    entries = list(zip(model_vocabulary.tokens, model_vocabulary.kinds, strict=True))[:num_rows]
    places: dict[tuple[bytes, Kind], int] = {}
    for i, entry in enumerate(entries):
        places.setdefault(entry, i)
    fallbacks = {(name.encode(), Kind.CONTROL): row for name, row in stand_ins(content, num_rows).items()}
    return [places.get(entry, fallbacks.get(entry)) for entry in zip(vocabulary.tokens, vocabulary.kinds, strict=True)]


def remap_embedding(weight: Tensor, rows: Sequence[EmbeddingRow]) -> Tensor:
    """(V, C) -> (len(rows), C): the given rows, and for None their mean and a little noise."""
    places = [i for i, row in enumerate(rows) if row is not None]
    named = weight[[row for row in rows if row is not None]]
    noise = torch.randn(len(rows), weight.shape[1], generator=torch.Generator().manual_seed(0))
    result = named.mean(dim=0) + NOISE * named.std(dim=0) * noise
    result[places] = named
    return result


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ValueError(f"{path}: no such model folder: in place of data/model, which DVC deletes first, name a copy")


def _encoder(path: Path, width: int) -> ByteEncoder:
    """The byte encoder in a folder, for embeddings of `width` channels."""
    encoder = read_byte_encoder(path)
    if encoder is None:
        raise ValueError(
            f"{path}: no {ENCODER_FILE}, which train_model.embedding: bytes starts from: name a copy of "
            "data/soft_tokenizer, or of a model that was trained with it"
        )
    first_half = ByteEncoder(encoder.shape, width)  # an encoder's second half, if any, computes the head's rows
    halves = {"embed_out.weight": slice(width), "embed_ngrams.weight": (slice(None), slice(width))}
    first_half.load_state_dict({name: weight[halves.get(name, ...)] for name, weight in encoder.state_dict().items()})
    return first_half


def _check_share(vocabulary: Vocabulary, rows: Sequence[EmbeddingRow], path: Path) -> None:
    """Raise ValueError where the model lacks most of the text tokens."""
    known = sum(rows[i] is not None for i in vocabulary.text_ids)
    if known < MIN_KNOWN_FRACTION * vocabulary.num_text:
        raise ValueError(
            f"{path}: its tokenizer has {known:,} of the {vocabulary.num_text:,} text tokens to be trained: "
            "use its own tokenizer, by train_tokenizer.type: pretrained"
        )
