"""What a decoder that works on chunks keeps of the past.

Shapes: B batch, T time (tokens), S time with the cached past, W channels of the outer layers, M chunks, N chunks with
the cached past.
"""

import torch
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.layers import KVCache

NO_TOKEN = 1 << 40  # where a chunk begins that only fills up its row


class ChunkCache:
    """Three caches, of tokens and of chunks, and the tokens themselves; setting `length` back rewinds all of them."""

    def __init__(self, config: ModelConfig, batch: int, length: int, weight: Tensor) -> None:
        assert config.chunking
        self.outer = KVCache(config.chunking.outer_config(config), batch, length, weight)
        self.router_states = KVCache(config.chunking.router_states_config(config), batch, length, weight)
        self.inner = KVCache(config, batch, length, weight)
        self.ids = torch.empty(batch, 0, dtype=torch.long, device=weight.device)  # (B, S)
        self.starts = torch.empty(batch, 0, dtype=torch.long, device=weight.device)  # (B, N) tokens that began chunks

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.outer.length

    @length.setter
    def length(self, length: int) -> None:
        self.outer.length = self.router_states.length = length

    def append_ids(self, ids: Tensor) -> Tensor:
        """(B, T) new tokens -> (B, S): after those of the past, without the rewound ones."""
        self.ids = torch.cat([self.ids[:, : self.length], ids], dim=1)
        return self.ids

    def append_router_state(self, key: Tensor, average: Tensor) -> None:
        """Keep two (B, T, W) of new tokens, whose last `last` returns."""
        self.router_states.append(0, key[:, None], average[:, None])

    def last_router_state(self) -> tuple[Tensor, Tensor]:
        """Two (B, 1, W) of the last token: the router's key, and the moving average of chunks."""
        last = slice(self.length - 1, self.length)
        return self.router_states.keys[0][:, 0, last], self.router_states.values[0][:, 0, last]

    def append_chunks(self, starts: Tensor) -> Tensor:
        """(B, M) tokens that begin chunks -> (B, N): after those of the past, without the rewound ones.

        The inner cache is rewound with them: its places are these N, of which new ones are yet to be filled.
        """
        is_past = self.starts < self.length
        places = torch.arange(1, self.starts.shape[1] + 1, device=starts.device)
        self.inner.length = int((is_past * places).max()) if len(places) else 0
        past = self.starts.masked_fill(~is_past, NO_TOKEN)[:, : self.inner.length]
        self.starts = torch.cat([past, starts], dim=1)
        return self.starts
