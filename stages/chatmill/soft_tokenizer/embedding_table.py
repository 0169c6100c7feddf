"""The embedding table of a chat model, and its replacement by rows that a network makes from bytes.

Shapes: V vocabulary, C channels of the model, R of a row: C, or 2C if the head has rows of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.evaluation.batch_scoring import make_batch_scorer
from chatmill.evaluation.corpus import Corpus
from chatmill.model.chat_model import INITIAL_ROTARY_POSITIONS, ChatModel
from chatmill.model.checkpoint_loading import EMBEDDING, HEAD
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.byte_encoder import ByteEmbedding, ByteEncoder

TABLES = (f"model.{EMBEDDING}", HEAD)
BitsPerByte = Mapping[str, float | None]


class EmbeddingSlice(nn.Module):
    """The rows of the embedding or of the head, if one network makes both side by side."""

    def __init__(self, embedding: ByteEmbedding, offset: int, width: int) -> None:
        super().__init__()
        self.embedding, self.offset, self.width = embedding, offset, width

    @property
    def weight(self) -> Tensor:
        """(V, C)."""
        return self.embedding.weight[:, self.offset : self.offset + self.width]


def unsupported_reason(config: ModelConfig) -> str | None:
    """Why a model has no embedding table that could be replaced; None if it has one."""
    if config.chunking:
        return "the model works on chunks of tokens (train_model.chunking): it reads tokens by more than a table"
    if config.byte_head:
        return "the model's head spells tokens as bytes (train_model.head): it has no row for each token"
    return None


def embedding_table(model: ChatModel) -> Tensor:
    """(V, R): the row of each id in the embedding and, if the head has rows of its own, in the head."""
    tables = [model.model.embed_tokens.weight]
    if not model.config.tie_word_embeddings:
        tables.append(model.lm_head.weight)
    return torch.cat(tables, dim=1).detach()


def with_embedding_table(model: ChatModel, table: Tensor) -> ChatModel:
    """A copy of the model with other rows (V, R)."""
    old = tuple(name.removesuffix("weight") for name in TABLES)  # tables made from bytes have many weights
    weights = {name: weight.clone() for name, weight in model.state_dict().items() if not name.startswith(old)}
    parts = table.detach().split(model.config.hidden_size, dim=1)
    weights |= {name: part.contiguous() for name, part in zip(TABLES, parts, strict=False)}
    with torch.device("meta"):
        other = ChatModel(replace(model.config, vocab_size=len(table)))
    other.load_state_dict(weights, assign=True)
    other.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    return other.eval()


@torch.no_grad()
def make_byte_embedding(encoder: ByteEncoder, vocabulary: Vocabulary, table: Tensor) -> ByteEmbedding:
    """The embedding of a vocabulary: text tokens from their bytes, others from their rows of the table (V, R)."""
    embedding = ByteEmbedding(encoder, vocabulary)
    embedding.embed_other.copy_(table[embedding.other])
    return embedding


def plug_in(model: ChatModel, embedding: ByteEmbedding) -> None:
    """Let the model make its rows from bytes at each call, so that they can be trained."""
    if model.config.tie_word_embeddings:
        model.model.embed_tokens = embedding
    else:
        width = model.config.hidden_size
        model.model.embed_tokens, model.lm_head = (
            EmbeddingSlice(embedding, 0, width),
            EmbeddingSlice(embedding, width, width),
        )


def rows_for(vocabulary: Vocabulary, known: Vocabulary, table: Tensor, counts: np.ndarray) -> Tensor:
    """The rows (V, R) of a model for another vocabulary, without those of text tokens.

    Control tokens keep theirs by name. All others get the row of the rarest token, which carries little meaning.
    """
    named = {known.tokens[i]: i for i in known.special.values()}
    unknown = int(counts.argmin())
    entries = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return table[[named.get(token, unknown) if kind == Kind.CONTROL else unknown for token, kind in entries]]


def measure_bits_per_byte(model: ChatModel, corpus: Corpus, *, trained_only: bool) -> BitsPerByte:
    """Bits per byte of all text (None if only answers were trained) and of the assistant's text."""
    nats = corpus.nats(model.config.max_position_embeddings, make_batch_scorer(model))
    return corpus.bits(nats, trained_only=trained_only)._asdict()
