"""The engine of our model in PyTorch: one chat with its cache, or several with caches of different lengths.

Shapes: R rows (sequences), B of them read at once, T time (tokens given), S time with the longest past, L cache length,
K key-value heads, D head size, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chatmill.engines.engine import Engine, default_threads, memory_errors
from chatmill.model.chat_model import ChatModel


class CacheView(NamedTuple):
    """Some rows of the caches, which the model uses as its cache."""

    keys: list[Tensor]  # (B, K, L, D) of each layer
    values: list[Tensor]
    positions: Tensor | None  # (B, T) of the ids that are read; None for one row, whose ids follow its past
    length: int  # of the longest past

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, K, T, D) -> two (B, K, S, D): each row appended to its own past."""
        end, cached = self.length + keys.shape[2], (self.keys[layer], self.values[layer])
        for cache, added in zip(cached, (keys, values), strict=True):
            if self.positions is None:
                cache[:, :, self.length : end] = added
            else:
                rows = torch.arange(len(added), device=added.device)[:, None]
                cache[rows, :, self.positions] = added.transpose(1, 2)
        return cached[0][:, :, :end], cached[1][:, :, :end]


class TorchCaches:
    """The model, with keys and values of R rows. Room for more tokens grows by doubling, for all rows alike."""

    def __init__(self, model: ChatModel, rows: int = 1) -> None:
        self.vocab_size, self.context = model.config.vocab_size, model.config.max_position_embeddings
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self._model, self._cache = model, model.new_cache(rows, self.context)
        self.device = str(self._cache.keys[0].device)

    def with_rows(self, rows: int) -> "TorchCaches | None":
        return None if self._model.config.variant.sliding_window else TorchCaches(self._model, rows)

    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        logits: np.ndarray = self._run(slice(row, row + 1), [list(ids)], [past], last_only=not all_logits)[0]
        return logits

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        return self._run(slice(len(ids)), [[token] for token in ids], pasts, last_only=True)[:, 0]

    @torch.inference_mode()
    def swap(self, first: int, second: int, length: int) -> None:
        for cache in (*self._cache.keys, *self._cache.values):
            cache[[first, second], :, :length] = cache[[second, first], :, :length]

    @torch.inference_mode()
    def _run(self, rows: slice, ids: list[list[int]], pasts: Sequence[int], *, last_only: bool) -> np.ndarray:
        """(B, T) ids -> logits (B, T, V), or (B, 1, V) of the last position."""
        past, time = max(pasts), len(ids[0])
        with memory_errors(self.device):
            self._make_room(past + time)
            batch, positions, mask = torch.tensor(ids, device=self.device), None, None
            if len(ids) > 1:
                columns = torch.arange(past + time, device=self.device)
                positions = torch.tensor(pasts, device=self.device)[:, None] + columns[:time]
                mask = columns <= positions[:, None, :, None]
            keys, values = ([layer[rows] for layer in cached] for cached in (self._cache.keys, self._cache.values))
            view = CacheView(keys, values, positions, past)
            logits: Tensor = self._model(batch, positions, mask, view, last_only=last_only)
            return logits.float().cpu().numpy()

    def _make_room(self, length: int) -> None:
        room = self._cache.values[-1].shape[2]  # of the last that grows
        if length > room:
            room = min(self.context, max(length, 2 * room))
            for tensors in (self._cache.keys, self._cache.values):
                for layer, cached in enumerate(tensors):
                    tensors[layer] = F.pad(cached, (0, 0, 0, room - cached.shape[2]))


class PyTorchEngine(Engine):
    """A ChatModel on a device. The number of threads is PyTorch's own, one for the whole process."""

    def __init__(
        self,
        model: ChatModel,
        *,
        fingerprint: str = "",
        template: str = "chatml",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        torch.set_num_threads(threads or default_threads())
        self.model = model.to(resolve_device(device)).eval()
        super().__init__(TorchCaches(self.model), "pytorch", fingerprint=fingerprint, template=template)


def resolve_device(name: str) -> torch.device:
    """The device of this name, as `cuda` or `cuda:1`; `auto` is the first available one. Raises ValueError for others.

    Where MPS lacks an operator, PyTorch uses the CPU for it if PYTORCH_ENABLE_MPS_FALLBACK=1 is set beforehand.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)  # CUDA, or Apple's MPS
    available = [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())] if kind else []
    available.append("cpu")
    matching = [device for device in available if name in ("auto", device, device.split(":")[0])]
    if not matching:
        raise ValueError(f"device {name!r}: not available: expected one of auto, {', '.join(available)}")
    return torch.device(matching[0])


def describe_device(device: torch.device | str) -> str:
    """The device in words: `cuda:0 NVIDIA H100, 71.2 GB free`, or `cpu, 3 threads`."""
    device = torch.device(device)
    if device.type == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    if device.type != "cuda":
        return str(device)
    free, _ = torch.cuda.mem_get_info(device)
    return f"{device} {torch.cuda.get_device_name(device)}, {free / 1e9:.1f} GB free"
