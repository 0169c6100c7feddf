"""The engine for all models that are not ours: Hugging Face's transformers, where it is installed."""

import inspect
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatmill.checkpoints.weights import Weights, first_few, read_weights, weight_files
from chatmill.engines.engine import check_append, check_rewind, default_threads, memory_errors
from chatmill.engines.pytorch_engine import resolve_device

UNLIMITED_CONTEXT = 1 << 20  # tokens, for models that name no context, such as recurrent ones
MAX_PACKING = 8  # quantized weights in one number of a file

_REFUSALS = (OSError, ValueError, RuntimeError, ImportError, LookupError, TypeError, AttributeError, ArithmeticError)


class TransformersEngine:
    """A causal language model with its own kind of cache. The number of threads is PyTorch's."""

    def __init__(self, model: Any, *, device: torch.device, threads: int | None = None) -> None:
        self.name, self.fingerprint, self.template = "transformers", "", ""
        torch.set_num_threads(threads or default_threads())
        self.device, self._device, self._model = str(device), device, model.to(device).eval()
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        self.context = getattr(config, "max_position_embeddings", None) or UNLIMITED_CONTEXT
        parameters = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._cache_parameter = next((name for name in ("past_key_values", "cache_params") if name in parameters), "")
        self._ids: list[int] = []
        self._cache: Any = None  # of the model's own class
        self._cached = 0  # ids in the cache

    @property
    def length(self) -> int:
        """Tokens read so far; the cache may hold fewer of them."""
        return len(self._ids)

    @torch.inference_mode()
    def append(self, ids: Sequence[int]) -> np.ndarray:
        check_append(self, ids)
        if len(ids) > 1 and not self._has_only_layers(of={"DynamicLayer", "DynamicSlidingWindowLayer"}):
            self._cache, self._cached = None, 0  # recurrent layers start anew with each call of several ids
        read = [*self._ids, *ids]
        batch = self._batch(read[self._cached :])
        cache_inputs = {self._cache_parameter: self._cache, "use_cache": True} if self._cache_parameter else {}
        self._cache, self._cached = None, 0  # after an interrupted run, some layers have grown and others have not
        with memory_errors(self.device):
            output = self._model(batch, **cache_inputs, **self._last_only)
        self._cache = getattr(output, self._cache_parameter, None)
        self._ids, self._cached = read, len(read) if self._cache is not None else 0
        return _numbers(output.logits[0, -1])

    def rewind(self, length: int) -> None:
        """A cache that cannot be truncated is computed again."""
        check_rewind(self, length)
        del self._ids[length:]
        if self._cached <= length:
            return
        can_crop = length and self._has_only_layers(of={"DynamicLayer"})
        cache, excess = self._cache, self._cached - length
        self._cache, self._cached = None, 0
        if can_crop:
            cache.crop(-excess)
            self._cache, self._cached = cache, length

    @torch.inference_mode()
    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        self.rewind(0)
        check_append(self, ids)
        return _numbers(self._model(self._batch(ids), use_cache=False).logits[0])

    def _batch(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], device=self._device)

    def _has_only_layers(self, of: set[str]) -> bool:
        return {type(layer).__name__ for layer in getattr(self._cache, "layers", [None])} <= of


def open_transformers_engine(path: Path, why: str, *, device: str, threads: int | None) -> TransformersEngine:
    """The engine of a folder, or of its file of weights; `why` is the reason why ours cannot run it.

    Code in the folder is never run. Raises ValueError where transformers is not installed, or rejects the folder.
    """
    if find_spec("transformers") is None:
        raise ValueError(f"{why}: transformers may run it: pip install 'chatmill[hf]'")
    folder, files = path if path.is_dir() else path.parent, weight_files(path)
    if weight_files(folder) != files:
        raise ValueError(f"{why}: name its folder, with no other weights in it: transformers reads complete folders")
    weights = read_weights(files)
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    place = resolve_device(device)
    ours = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **ours)
        _check_size(config, weights)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32 if place.type == "cpu" else "auto",
            output_loading_info=True,
            **ours,
        )
    except (StrictDataclassError, *_REFUSALS) as error:
        raise ValueError(f"{why}, and transformers rejects it: {' '.join(str(error).split()):.200}") from error
    model, report = loaded
    if lacking := sorted({*report["missing_keys"], *(str(name) for name, *_ in report["mismatched_keys"])}):
        raise ValueError(
            f"{folder}: transformers finds {len(lacking)} weights missing or misshapen: {first_few(lacking)}"
        )
    return TransformersEngine(model, device=place, threads=threads)


def _check_size(config: Any, weights: Weights) -> None:
    """Raise ValueError where a model would be far larger than its files: transformers fills in what is missing."""
    from transformers import AutoModelForCausalLM

    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if layers > len(weights):
        raise ValueError(f"{layers} layers, but the files hold {len(weights)} tensors")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed, there = (sum(map(Tensor.numel, tensors)) for tensors in (model.parameters(), weights.values()))
    if needed > MAX_PACKING * there:
        raise ValueError(f"it has {needed:,} weights, but the files hold {there:,} numbers")


def _numbers(logits: torch.Tensor) -> np.ndarray:
    return logits.float().cpu().numpy()
