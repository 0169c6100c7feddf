"""A decoder whose inner layers work on chunks of tokens, with a router that is trained to find where chunks begin.

As in H-Net (arXiv:2507.07955): outer layers read every token; a router begins a chunk where a token is unlike the one
before it; the inner layers see one vector per chunk, and their output goes to every token of the chunk. The input of
the outer layers is the embedding of a token plus those of the n-grams that end with it, as in the Byte Latent
Transformer (arXiv:2412.09871).

Shapes: B batch, T time (tokens), S time with the cached past, V vocabulary, C channels, W channels of the outer layers,
M chunks, N chunks with the cached past, D head size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chunk_cache import NO_TOKEN, ChunkCache
from chatmill.model.layers import EmbeddingTable, Layer
from chatmill.model.ngrams import hash_token_ngrams
from chatmill.model.routing import Autoencoder, Projection, Router, RouterOutput, ratio_loss, surprise_loss
from chatmill.model.windows import SlidingWindow

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
        """(B, T), (V, C) -> (B, T, C), or (B, 1, C) of the last position; and what `auxiliary_loss` takes."""
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
        confidence = confidence + (1 - confidence).detach()  # equals one, but passes a gradient to the router
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
