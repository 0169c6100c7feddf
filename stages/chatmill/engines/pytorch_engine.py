"""The engine of our model in PyTorch: one chat with its cache, or several with caches of different lengths.

Shapes: R rows (sequences), B of them read at once, T time (tokens given), S time with the longest past, L cache length,
K key-value heads, D head size, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chatmill.engines.engine import check_append, check_rewind, default_threads, memory_errors
from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import INITIAL_CACHE_LENGTH


class CacheView(NamedTuple):
    """Some rows of the caches, which the model uses as its cache."""

    keys: list[Tensor]  # (B, K, L, D) of each layer
    values: list[Tensor]
    positions: Tensor  # (B, T) of the ids that are read
    length: int  # of the longest past

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, K, T, D) -> two (B, K, S, D): each row appended to its own past."""
        rows, end = torch.arange(len(keys), device=keys.device)[:, None], self.length + keys.shape[2]
        self.keys[layer][rows, :, self.positions] = keys.transpose(1, 2)
        self.values[layer][rows, :, self.positions] = values.transpose(1, 2)
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class TorchCaches:
    """The model, with (R, K, L, D) keys and values of each layer. L grows by doubling, for all rows alike."""

    continues = True

    def __init__(self, model: ChatModel, rows: int, device: str) -> None:
        config = model.config
        self._model, self._device = model, device
        shape = (
            rows,
            config.num_key_value_heads,
            min(INITIAL_CACHE_LENGTH, config.max_position_embeddings),
            config.head_dim,
        )
        weight = model.model.embed_tokens.weight
        self._keys, self._values = (
            [weight.new_zeros(shape) for _ in range(config.num_hidden_layers)] for _ in ("keys", "values")
        )

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        last: np.ndarray = self.run(row, ids, past, keep=1)[-1]
        return last

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """All logits are kept unless `keep` is 1."""
        logits: np.ndarray = self._run(slice(row, row + 1), [list(ids)], [past], last_only=keep == 1)[0]
        return logits

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        return self._run(slice(len(ids)), [[token] for token in ids], pasts, last_only=True)[:, 0]

    @torch.inference_mode()
    def swap(self, first: int, second: int, length: int) -> None:
        for cache in (*self._keys, *self._values):
            cache[[first, second], :, :length] = cache[[second, first], :, :length]

    @torch.inference_mode()
    def _run(self, rows: slice, ids: list[list[int]], pasts: Sequence[int], *, last_only: bool) -> np.ndarray:
        """(B, T) ids -> logits (B, T, V), or (B, 1, V) of the last position."""
        past, time = max(pasts), len(ids[0])
        with memory_errors(self._device):
            self._make_room(past + time)
            batch, columns = torch.tensor(ids, device=self._device), torch.arange(past + time, device=self._device)
            positions = torch.tensor(pasts, device=self._device)[:, None] + columns[:time]
            mask = columns <= positions[:, None, :, None]
            keys, values = ([layer[rows] for layer in caches] for caches in (self._keys, self._values))
            cache = CacheView(keys, values, positions, past)
            logits: Tensor = self._model(batch, positions, mask, cache, last_only=last_only)
            return logits.float().cpu().numpy()

    def _make_room(self, length: int) -> None:
        old = self._keys[0].shape[2]
        if length <= old:
            return
        new = min(max(length, 2 * old), self._model.config.max_position_embeddings)
        for caches in (self._keys, self._values):
            for layer, cache in enumerate(caches):
                B, K, L, D = cache.shape
                caches[layer] = cache.new_zeros(B, K, new, D)
                caches[layer][:, :, :L] = cache


# One chat, on the CPU or an accelerator.


class PyTorchEngine:
    """A ChatModel with its cache. The number of threads is PyTorch's own, one for the whole process."""

    def __init__(
        self,
        model: ChatModel,
        *,
        fingerprint: str = "",
        template: str = "chatml",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.name, self.fingerprint, self.template = "pytorch", fingerprint, template
        self._device = resolve_device(device)
        self.device = str(self._device)
        self.vocab_size, self.context = model.config.vocab_size, model.config.max_position_embeddings
        torch.set_num_threads(threads or default_threads())
        self.model = model.to(self._device).eval()
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self._cache = self.model.new_cache(1, self.context)

    @property
    def length(self) -> int:
        return self._cache.length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        check_append(self, ids)
        last: np.ndarray = self._run(ids, last_only=True)[-1]
        return last

    def rewind(self, length: int) -> None:
        check_rewind(self, length)
        self._cache.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        self.rewind(0)
        check_append(self, ids)
        logits = self._run(ids, last_only=False)
        self.rewind(0)
        return logits

    def new_caches(self, rows: int) -> TorchCaches | None:
        config = self.model.config
        return None if config.variant.sliding_window else TorchCaches(self.model, rows, self.device)

    @torch.inference_mode()
    def _run(self, ids: Sequence[int], *, last_only: bool) -> np.ndarray:
        length = self.length
        try:
            with memory_errors(self.device):
                batch = torch.tensor([list(ids)], device=self._device)
                logits: torch.Tensor = self.model(batch, cache=self._cache, last_only=last_only)[0]
                return logits.float().cpu().numpy()
        except (RuntimeError, MemoryError):
            self._cache.length = length
            raise


def available_devices() -> list[str]:
    """The available devices, the fastest kind first: those of CUDA, or of Apple's MPS, then the CPU."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    found = [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())] if kind else []
    return [*found, "cpu"]


def resolve_device(name: str) -> torch.device:
    """The device of this name, as `cuda` or `cuda:1`; `auto` is the first available one. Raises ValueError for others.

    Where MPS lacks an operator, PyTorch uses the CPU for it if PYTORCH_ENABLE_MPS_FALLBACK=1 is set beforehand.
    """
    available = available_devices()
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
