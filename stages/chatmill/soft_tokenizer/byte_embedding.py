"""A token's embedding, computed from its bytes by a tiny transformer and by hashed n-grams.

Shapes: B batch, T time (tokens), S time with the cached past, N lengths of n-grams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import Layer
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

START = 256  # plus the kind of the token: normal, continuation, fallback
TOKEN_END, PAD_SYMBOL = START + 3, START + 4
SYMBOLS = START + 5
_SALTS = (1 << 20, 1 << 21, 1 << 22)  # which separate the hashes of different kinds of n-grams
GROUPS = 3  # of tokens of similar length, so that there is little padding


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteEncoderShape:
    width: int = 64  # channels
    layers: int = 2
    longest: int = 32  # bytes of a token that are read, at most: longer ones are cut
    ngrams: int = 4  # bytes of the longest n-gram; 0 for none, not even the complete token
    slots: int = 16384  # rows that n-grams share
    features: int = 0  # channels of a gated layer between transformer and embedding; 0 for no such layer

    def config(self) -> ModelConfig:
        """The shape of its layers, which read up to `longest` bytes, and the marks of start and end."""
        return ModelConfig.from_depth(
            self.layers, vocab_size=SYMBOLS, context=self.longest + 2, width=self.width, heads=-(-self.width // 32)
        )


def spell_tokens(tokens: Sequence[bytes], kinds: Sequence[Kind], longest: int) -> Tensor:
    """(N, L) int64: `b"ab"` is `[START, 97, 98, TOKEN_END]`, padded with PAD_SYMBOL to the longest token.

    Raises ValueError for an empty token, which has no bytes to read.
    """
    if b"" in tokens:
        raise ValueError(f"{tokens.count(b'')} of {len(tokens)} tokens are empty, with no bytes to read: use others")
    pairs = zip(tokens, kinds, strict=True)
    spelled = [torch.tensor([START + kind, *token[:longest], TOKEN_END]) for token, kind in pairs]
    return pad_sequence(spelled, batch_first=True, padding_value=PAD_SYMBOL)


class ByteEncoder(nn.Module):
    """Computes the embeddings of tokens from their bytes."""

    cos: Tensor  # (longest + 2, D/2)
    sin: Tensor

    def __init__(self, shape: ByteEncoderShape, hidden_size: int) -> None:
        super().__init__()
        self.shape, config = shape, shape.config()
        self.embed_bytes = nn.Embedding(SYMBOLS, shape.width)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        if shape.features:
            self.gate_proj = nn.Linear(shape.width, shape.features, bias=False)
            self.up_proj = nn.Linear(shape.width, shape.features, bias=False)
        self.embed_out = nn.Linear(shape.features + 1 if shape.features else shape.width, hidden_size, bias=False)
        if shape.ngrams:
            self.embed_ngrams = nn.Embedding(shape.slots, hidden_size)
        frequencies = 100.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        angles = torch.arange(shape.longest + 2)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def encode(self, spelled: Tensor) -> Tensor:
        """(N, L) int64 -> (N, W) or, where there are features, (N, features + 1), of which the last is always 1."""
        is_read = spelled != PAD_SYMBOL
        rotary = self.cos[: spelled.shape[1]], self.sin[: spelled.shape[1]]  # (L, D/2)
        x = self.embed_bytes(spelled)
        for layer in self.layers:
            x = layer(x, rotary, is_read[:, None, None].expand(-1, 1, spelled.shape[1], -1), None)
        x = (self.norm(x) * is_read[..., None]).sum(dim=1) / is_read.sum(dim=1, keepdim=True)
        if not self.shape.features:
            scaled: Tensor = x * self.shape.width**-0.5
            return scaled
        x = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return F.pad(x * self.shape.features**-0.5, (0, 1), value=1.0)

    def forward(self, spelled: Tensor) -> Tensor:
        """(N, L) int64 -> (N, C)."""
        x: Tensor = self.embed_out(self.encode(spelled))
        if self.shape.ngrams:
            hashes, count = hash_byte_ngrams(spelled, self.shape.ngrams)
            shares = (hashes >= 0) * count[:, None] ** -0.5
            slots, table = hashes.clamp(min=0) % self.shape.slots, self.embed_ngrams.weight
            x = x + F.embedding_bag(slots, table, mode="sum", per_sample_weights=shares.to(table.dtype))
        return x


def hash_byte_ngrams(spelled: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """(N, L) int64 -> (N, G) int64, the hash of each n-gram or -1, and (N,) how many there are.

    N-grams are in lower case, so that a word in capitals shares them with the same word in small letters; the single
    symbols and the complete token are hashed as they are, too.
    """
    small = torch.where((spelled >= ord("A")) & (spelled <= ord("Z")), spelled + 32, spelled)
    is_read = spelled != PAD_SYMBOL
    parts, state = [torch.where(is_read, mix_bits(spelled + _SALTS[0]), -1)], torch.zeros_like(spelled)
    for length in range(1, longest + 1):
        state = mix_bits(state[:, : spelled.shape[1] - length + 1] + small[:, length - 1 :])
        parts.append(torch.where(is_read[:, length - 1 :], state, -1))
    parts += [_hash_token(small, _SALTS[1]), _hash_token(spelled, _SALTS[2])]
    hashes = torch.cat(parts, dim=1)
    return hashes, (hashes >= 0).sum(dim=1)


def _hash_token(spelled: Tensor, salt: int) -> Tensor:
    """(N, L) -> (N, 1): the hash of all symbols."""
    state = torch.full_like(spelled[:, 0], salt)
    for symbol in spelled.unbind(dim=1):
        state = torch.where(symbol != PAD_SYMBOL, mix_bits(state + symbol), state)
    return state[:, None]


class ByteEmbedding(nn.Module):
    """The embedding of a vocabulary: computed from bytes for tokens of text, a stored row for each other token."""

    order: Tensor  # (V,) int64: the place of each id's row among the computed and stored ones

    def __init__(self, encoder: ByteEncoder, vocabulary: Vocabulary, table: Tensor) -> None:
        """The tokens without text have their rows of the table (V, C)."""
        super().__init__()
        self.encoder = encoder
        text = sorted(vocabulary.text_ids, key=lambda i: len(vocabulary.tokens[i]))
        other = sorted(set(range(len(vocabulary.tokens))) - set(text))
        self.embed_other = nn.Parameter(table.detach()[other].clone())
        self.register_buffer("order", torch.tensor([*text, *other]).argsort(), persistent=False)
        for group in range(GROUPS):
            part = text[group * len(text) // GROUPS : (group + 1) * len(text) // GROUPS]
            entries = [vocabulary.tokens[i] for i in part], [vocabulary.kinds[i] for i in part]
            self.register_buffer(f"spelled_{group}", spell_tokens(*entries, encoder.shape.longest), persistent=False)

    @property
    def weight(self) -> Tensor:
        """(V, C): the same embedding as a table."""
        text = [self.encoder(getattr(self, f"spelled_{group}")) for group in range(GROUPS)]
        return torch.cat([*text, self.embed_other])[self.order]

    @torch.no_grad()
    def table(self) -> Tensor:
        """The same without what gradients need, which for 49,152 tokens are 12 GB."""
        return self.weight


def use_byte_embedding(model: ChatModel, encoder: ByteEncoder, vocabulary: Vocabulary) -> None:
    """Replace a model's embedding table by a ByteEmbedding; tokens without text keep their rows.

    `use_embedding_table` inverts it.
    """
    model.model.embed_tokens = ByteEmbedding(encoder, vocabulary, model.model.embed_tokens.weight)


def use_embedding_table(model: ChatModel) -> ByteEncoder | None:
    """Replace a model's ByteEmbedding by its table, and return its byte encoder; None if there was none."""
    embedding = model.model.embed_tokens
    if not isinstance(embedding, ByteEmbedding):
        return None
    with torch.no_grad():
        model.model.embed_tokens = nn.Embedding.from_pretrained(embedding.weight, freeze=False)
    return embedding.encoder


def mix_bits(numbers: Tensor) -> Tensor:
    """Hash numbers from 0 to 2**31 - 1 to the same range; inputs that differ in one bit differ in about half after."""
    numbers = (numbers * 0x2C1B3C6D) & 0x7FFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x297A2D39) & 0x7FFFFFFF
    return numbers ^ (numbers >> 14)
