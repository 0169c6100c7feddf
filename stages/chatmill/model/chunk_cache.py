"""The caches of a decoder that works on chunks.

Shapes: B batch, T time (tokens), S time with the cached past, W channels of the outer layers, M chunks, N chunks with
the cached past.
"""

import torch
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.layers import KVCache

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
