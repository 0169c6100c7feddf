"""A decoder whose inner layers work on chunks of tokens, with its attention and caches.

Shapes: B batch, T time (tokens), S time with the cached past, W tokens of a window, n = T / W, C channels, K key-value
heads, D head size.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.evaluation.intervals import pooled_share
from chatmill.model.layers import EmbeddingTable, KVCache, Layer, PastKeyValues, SequenceCache
from chatmill.soft_tokenizer.routing import (
    Autoencoder,
    Projection,
    Router,
    RouterOutput,
    hash_token_ngrams,
    ratio_loss,
    surprise_loss,
)

# Sliding-window attention: each token sees the last few tokens, and the cost grows with their number only.


class _BlockBefore:
    """Stands in for a cache: prepends the previous block's keys and values to those of each block of W tokens."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B n, K, W, D) -> two (B n, K, 2 W, D); the first block gets those of another, which the mask hides."""
        return self._with_block_before(keys), self._with_block_before(values)

    def _with_block_before(self, x: Tensor) -> Tensor:
        before = x.unflatten(0, (-1, self.blocks)).roll(1, dims=1).flatten(0, 1)
        return torch.cat([before, x], dim=2)


class SlidingWindow:
    """Runs layers in which each token sees the last `size` tokens; rotary and mask are as for a Layer."""

    def __init__(
        self, size: int, batch: int, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: SequenceCache | None
    ) -> None:
        time = rotary[0].shape[2]
        self.size = size
        self.cache: PastKeyValues | None
        self.in_blocks = cache is None and time > size and time % size == 0
        if self.in_blocks:
            blocks = time // size
            cos, sin = (fold(table.expand(batch, -1, -1, -1)[:, 0], size)[:, None] for table in rotary)
            self.rotary = cos, sin
            self.mask, self.cache = mask_of_blocks(mask, batch, blocks, size, rotary[0].device), _BlockBefore(blocks)
        else:
            past = cache.length if cache else 0
            near = torch.ones(time, past + time, dtype=torch.bool, device=rotary[0].device).tril(past)
            near = near.triu(past - size + 1)
            self.rotary, self.mask, self.cache = rotary, near if mask is None else mask & near, cache

    def run(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C) through the layers."""
        shape = x.shape
        x = fold(x, self.size) if self.in_blocks else x
        for layer in layers:
            x = layer(x, self.rotary, self.mask, self.cache)
        return x.reshape(shape)


def fold(x: Tensor, size: int) -> Tensor:
    """(B, T, C) -> (B n, W, C)."""
    return x.reshape(-1, size, x.shape[-1])


def mask_of_blocks(mask: Tensor | None, batch: int, blocks: int, size: int, device: torch.device) -> Tensor:
    """(B, 1, T, T) bool, or None for causal -> (B n, 1, W, 2 W): what the tokens of a block attend to.

    The first W columns are the previous block.
    """
    near = torch.ones(size, 2 * size, dtype=torch.bool, device=device).triu(1).tril(size)
    if mask is None:
        seen = near.repeat(batch, blocks, 1, 1)
        seen[:, 0, :, :size] = False
    else:
        square = mask.expand(batch, -1, -1, -1)[:, 0].unflatten(1, (blocks, size)).unflatten(3, (blocks, size))
        each = torch.arange(blocks, device=device)
        own = square[:, each, :, each].movedim(0, 1)
        before = square[:, each[1:], :, each[:-1]].movedim(0, 1)
        before = torch.cat([torch.zeros_like(own[:, :1]), before], dim=1)
        seen = torch.cat([before, own], dim=-1) & near
    return seen.flatten(0, 1)[:, None]


# The caches of a decoder that works on chunks.

NO_TOKEN = 1 << 40  # the start of a chunk that only pads its row


class ChunkCache:
    """Caches of the outer layers, the router and the inner layers, and the ids; lowering `length` rewinds them all."""

    def __init__(self, config: ModelConfig, batch: int, length: int, weight: Tensor) -> None:
        assert config.chunking
        self.outer = KVCache(config.chunking.outer_config(config), batch, length, weight)
        self.router_states = KVCache(config.chunking.router_states_config(config), batch, length, weight)
        self.inner = KVCache(config, batch, length, weight)
        self.ids = torch.empty(batch, 0, dtype=torch.long, device=weight.device)  # (B, S)
        self.starts = torch.empty(batch, 0, dtype=torch.long, device=weight.device)  # (B, N) first tokens of chunks

    @property
    def length(self) -> int:
        """The number of tokens in the cache."""
        return self.outer.length

    @length.setter
    def length(self, length: int) -> None:
        self.outer.length = self.router_states.length = length

    def append_ids(self, ids: Tensor) -> Tensor:
        """(B, T) new ids -> (B, S): appended to those of the past that were not rewound."""
        self.ids = torch.cat([self.ids[:, : self.length], ids], dim=1)
        return self.ids

    def append_router_state(self, key: Tensor, average: Tensor) -> None:
        """Append the router's keys and the moving averages of new tokens, each (B, T, W)."""
        self.router_states.append(0, key[:, None], average[:, None])

    def last_router_state(self) -> tuple[Tensor, Tensor]:
        """Two (B, 1, W) of the last token: the router's key, and the moving average of chunks."""
        last = slice(self.length - 1, self.length)
        return self.router_states.keys[0][:, 0, last], self.router_states.values[0][:, 0, last]

    def append_chunks(self, starts: Tensor) -> Tensor:
        """(B, M) first tokens of new chunks -> (B, N): appended to those of the past that were not rewound.

        The inner cache is rewound as well: its positions are these N, of which the new ones are not filled yet.
        """
        is_past = self.starts < self.length
        places = torch.arange(1, self.starts.shape[1] + 1, device=starts.device)
        self.inner.length = int((is_past * places).max()) if len(places) else 0
        past = self.starts.masked_fill(~is_past, NO_TOKEN)[:, : self.inner.length]
        self.starts = torch.cat([past, starts], dim=1)
        return self.starts


# A decoder whose inner layers work on chunks of tokens, with a router that is trained to find where chunks begin.

_PAD_TO_MULTIPLE_OF = 16  # chunks; without a cache, rows are padded to a multiple of it, so that few shapes occur
_CAPACITY_FACTOR = 1.5  # room for chunks in compiled code, relative to the expected number in a row
_LEAST = 1e-30  # smallest decay whose logarithm is taken
_FARTHEST = 80.0  # exp(-80) is nearly zero, and still fast to compute


class ChunkedDecoder(nn.Module):
    """Embedding, outer and inner layers, and the last norm."""

    embed_tokens: EmbeddingTable

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.chunking
        self.config, self.chunking, num_outer = config, config.chunking, config.chunking.layers
        outer, width, epsilon = config.chunking.outer_config(config), config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, width), freeze=False)
        self.narrow = Projection(width, outer.hidden_size)
        self.embed_ngrams = nn.Embedding(self.chunking.slots, outer.hidden_size)
        self.before = nn.ModuleList(Layer(outer, layer) for layer in range(num_outer))
        if self.chunking.boundaries != "fixed":
            self.router = Router(outer.hidden_size)
        if self.chunking.boundaries == "autoencoder":
            self.autoencoder = Autoencoder(outer.hidden_size, width)
        self.chunk_norm = nn.RMSNorm(outer.hidden_size, epsilon)
        self.widen = Projection(outer.hidden_size, width)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.spread_norm = nn.RMSNorm(width, epsilon)
        self.spread = Projection(width, outer.hidden_size)
        self.residual = Projection(outer.hidden_size, outer.hidden_size)
        self.after = nn.ModuleList(Layer(outer, num_outer + layer) for layer in range(num_outer))
        self.last_norm = nn.RMSNorm(outer.hidden_size, epsilon)
        self.out = Projection(outer.hidden_size, width)
        self.norm = nn.RMSNorm(width, epsilon)

    def forward(
        self,
        ids: Tensor,
        table: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: ChunkCache | None,
        *,
        last_only: bool,
    ) -> tuple[Tensor, RouterOutput]:
        """ids (B, T), table (V, C) -> (B, T, C), or (B, 1, C) of the last position; and what `auxiliary_loss` takes."""
        window = SlidingWindow(self.chunking.window, len(ids), rotary, mask, cache.outer if cache else None)
        key, average = cache.last_router_state() if cache and cache.length else (None, None)
        routed, keys = self._route(ids, table, window, mask, cache, key)
        x, p = routed.x, routed.p.detach() if self.chunking.boundaries == "autoencoder" else routed.p
        likely = p >= 0.5
        most = self._most(likely, exact=cache is not None)
        starts = likely & (likely.cumsum(1) <= most)
        tokens = start_indices(starts, most)
        chunks = self._inner(x, tokens, mask, cache)
        averages = moving_average(chunks, p.gather(1, tokens.clamp(max=x.shape[1] - 1)), average)
        spread = gather_rows(averages, starts.cumsum(1) - int(average is None))
        if cache:
            cache.append_router_state(keys, spread)
        confidence = torch.where(starts, p, 1 - p)[..., None]
        confidence = confidence + (1 - confidence).detach()  # equals one, but passes a gradient to p
        x = window.run(self.after, confidence.to(x.dtype) * spread + self.residual(x))
        x = self.out(self.last_norm(x[:, -1:] if last_only else x)).to(x.dtype)
        return self.norm(x), routed

    def auxiliary_loss(self, routed: RouterOutput, ids: Tensor, table: Tensor, nats: Tensor) -> Tensor | None:
        """The loss (B,) that training adds to the mean of `nats` (B, T); None where boundaries are fixed."""
        shape = self.chunking
        if shape.boundaries == "fixed":
            return None
        penalty = shape.weight * ratio_loss(routed.p >= 0.5, routed.p, shape.rate)
        if shape.boundaries == "autoencoder":
            reconstruction_cost: Tensor = self.autoencoder(routed, ids, table, shape.rate)
            return penalty + shape.reconstruction * reconstruction_cost
        return penalty + shape.surprise * surprise_loss(routed, nats, shape.rate)

    def boundaries(self, ids: Tensor, table: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """(B, T), (V, C) -> (B, T) bool: which positions begin a chunk."""
        window = SlidingWindow(self.chunking.window, len(ids), rotary, mask, None)
        return self._route(ids, table, window, mask, None, None)[0].p >= 0.5

    def new_cache(self, batch: int, length: int) -> ChunkCache:
        """An empty cache for `length` tokens of each of `batch` sequences."""
        return ChunkCache(self.config, batch, length, self.embed_tokens.weight)

    def _route(
        self,
        ids: Tensor,
        table: Tensor,
        window: SlidingWindow,
        mask: Tensor | None,
        cache: ChunkCache | None,
        last: Tensor | None,
    ) -> tuple[RouterOutput, Tensor]:
        """The router's input and output, and its keys (B, T, W), with which the next token is compared."""
        places = positions_from_mask(mask, ids)
        slots = (
            hash_token_ngrams(cache.append_ids(ids) if cache else ids, places, self.chunking.ngrams)
            % self.chunking.slots
        )
        x = F.embedding(ids, table)
        rows = F.embedding_bag(slots.flatten(0, 1), self.embed_ngrams.weight, mode="sum").unflatten(0, ids.shape)
        x = window.run(self.before, self.narrow(x).to(x.dtype) + rows * slots.shape[2] ** -0.5)
        if self.chunking.boundaries == "fixed":
            return RouterOutput(x, (places % self.chunking.rate < 1).float().expand(ids.shape), places), x
        p, keys = self.router(x, last)
        return RouterOutput(x, p.masked_fill(places == 0, 1.0), places), keys

    def _most(self, starts: Tensor, *, exact: bool) -> int:
        """The number of chunks that a row of (B, T) bool gets room for: its own, but in compiled code a fixed number.

        There, starts beyond that number begin no chunk; they occur only until the router is trained to the rate.
        """
        if torch.compiler.is_compiling():
            return min(starts.shape[1], math.ceil(_CAPACITY_FACTOR * starts.shape[1] / self.chunking.rate))
        most = int(starts.sum(1).max())
        return most if exact else -(-most // _PAD_TO_MULTIPLE_OF) * _PAD_TO_MULTIPLE_OF

    def _inner(self, x: Tensor, tokens: Tensor, mask: Tensor | None, cache: ChunkCache | None) -> Tensor:
        """(B, T, W) -> (B, M, W): the inner layers' output for the chunks that begin at `tokens`."""
        columns = cache.append_chunks(tokens + cache.length) if cache else tokens
        tokens = tokens.clamp(max=x.shape[1] - 1)
        x = self.widen(self.chunk_norm(gather_rows(x, tokens))).to(x.dtype)
        if tokens.shape[1]:
            mask = mask if mask is None else mask_of_chunks(mask, tokens, columns)
            rotary = self._rotations(positions_from_mask(mask, x))
            for layer in self.layers:
                x = layer(x, rotary, mask, cache.inner if cache else None)
        chunks: Tensor = self.spread(self.spread_norm(x))
        return chunks

    def _rotations(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """(B, M) -> two (B, 1, M, D/2): cosines and sines of positions that count chunks."""
        size = self.config.head_dim
        frequencies = self.config.rope_theta ** (-torch.arange(0, size, 2, device=places.device) / size)
        angles = places[:, None, :, None] * frequencies
        return angles.cos(), angles.sin()


def positions_from_mask(mask: Tensor | None, x: Tensor) -> Tensor:
    """(B, 1, T, S), (B, T, C) -> (B, T) or (1, T): the position of each token in its conversation."""
    return torch.arange(x.shape[1], device=x.device)[None] if mask is None else mask[:, 0].sum(-1) - 1


def start_indices(starts: Tensor, most: int) -> Tensor:
    """(B, T) bool -> (B, M): the indices of the tokens that begin chunks; rows with fewer are padded with NO_TOKEN."""
    rows, time = starts.shape
    tokens = torch.full((rows, most + 1), NO_TOKEN, device=starts.device)
    here = torch.arange(time, device=starts.device).expand(rows, -1)
    return tokens.scatter(1, torch.where(starts, starts.cumsum(1) - 1, most), here)[:, :most]


def mask_of_chunks(mask: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, 1, T, S), (B, M), (B, N) -> (B, 1, M, N): chunks attend to each other as their first tokens do.

    A padding chunk is seen by itself alone.
    """
    batch, time = len(rows), mask.shape[-1]
    seen = mask[:, 0].expand(batch, -1, -1).gather(1, rows[..., None].expand(-1, -1, time))
    seen = seen.gather(2, columns.clamp(max=time - 1)[:, None].expand(-1, rows.shape[1], -1))
    itself = torch.ones_like(seen[0]).tril(columns.shape[1] - rows.shape[1]).triu(columns.shape[1] - rows.shape[1])
    return (seen & (columns < time)[:, None] | itself)[:, None]


def moving_average(chunks: Tensor, p: Tensor, last: Tensor | None) -> Tensor:
    """(B, M, W), (B, M) -> (B, M, W): `average = p * chunk + (1 - p) * average`.

    It continues from `last` (B, 1, W), with which the result then begins; else the first p is 1.
    """
    if last is not None:
        chunks = torch.cat([last.to(chunks.dtype), chunks], dim=1)
        p = torch.cat([torch.ones_like(p[:, :1]), p], dim=1) if p.shape[1] else last.new_ones(len(last), 1)
    log_decay = (1 - p).clamp(min=_LEAST).double().log().cumsum(1)
    decay = (log_decay[:, :, None] - log_decay[:, None]).clamp(-_FARTHEST, 0).float().exp().tril()
    return (decay * p[:, None]).to(chunks.dtype) @ chunks


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """(B, N, C), (B, M) -> (B, M, C): the rows at these indices."""
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    return F.embedding(indices + first, x.flatten(0, 1))


# The chunks in which a chunking model processes text, and their statistics.

if TYPE_CHECKING:
    from chatmill.model.chat_model import ChatModel


@torch.inference_mode()
def chunk_starts(model: "ChatModel", ids: Sequence[int]) -> np.ndarray:
    """(T,) bool: whether each token starts a chunk; a longer text is processed in parts of one context."""
    context = model.config.max_position_embeddings
    parts = [ids[start : start + context] for start in range(0, len(ids), context)]
    found = [model.boundaries(torch.tensor([list(part)]))[0].numpy() for part in parts]
    return np.concatenate([np.empty(0, bool), *found])


def chunk_contents(starts: np.ndarray, contents: Sequence[bytes]) -> list[bytes]:
    """The bytes of each chunk of a text, given the bytes of its tokens."""
    places = [*np.flatnonzero(starts).tolist(), len(contents)]
    return [b"".join(contents[begin:end]) for begin, end in pairwise(places)]


def chunk_statistics(starts: Sequence[np.ndarray], contents: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """The mean length of the chunks of several texts in tokens, and the share that starts at an edge of a word.

    `spread` is the standard deviation of the lengths divided by their mean, 0 for chunks of equal length. `chance` is
    the share of all tokens that start at an edge of a word.
    """
    lengths = np.concatenate([np.diff([*np.flatnonzero(one), len(one)]) for one in starts])
    edges = [np.array(word_edges(text), bool) for text in contents]
    return {
        "tokens": float(lengths.mean()),
        "spread": float(lengths.std() / lengths.mean()),
        "at_word_edges": pooled_share([edge[one] for edge, one in zip(edges, starts, strict=True)]),
        "chance": pooled_share(edges),
    }


def word_edges(contents: Sequence[bytes]) -> list[bool]:
    """Whether each token starts where a word starts or ends."""
    before = b" "
    edges = []
    for content in contents:
        edges.append(_is_letter(before[-1]) != _is_letter(content[0]))
        before = content
    return edges


def _is_letter(byte: int) -> bool:
    return byte >= 128 or chr(byte).isalnum()
