"""The PyTorch engine: runs our model on the CPU or an accelerator."""

from collections.abc import Sequence

import numpy as np
import torch

from chatmill.engines.engine import ChatBatch, as_memory_error, check_append, check_rewind, default_threads
from chatmill.engines.torch.caches import TorchCaches
from chatmill.model.chat_model import ChatModel


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
        """Tokens in the cache."""
        return self._cache.length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of the next token."""
        check_append(self, ids)
        last: np.ndarray = self._run(ids, last_only=True)[-1]
        return last

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self._cache.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a complete sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._run(ids, last_only=False)
        self.rewind(0)
        return logits

    def chat_batch(self, rows: int) -> ChatBatch:
        """A batch of up to `rows` chats, each with a cache of its own, on the weights of this engine."""
        return ChatBatch(self, TorchCaches(self.model, rows, self.device), rows)

    @torch.inference_mode()
    def _run(self, ids: Sequence[int], *, last_only: bool) -> np.ndarray:
        length = self.length
        try:
            batch = torch.tensor([list(ids)], device=self._device)
            logits: torch.Tensor = self.model(batch, cache=self._cache, last_only=last_only)[0]
            return logits.float().cpu().numpy()
        except (RuntimeError, MemoryError) as error:
            self._cache.length = length
            if out_of_memory := as_memory_error(error, self.device):
                raise out_of_memory from error
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
