"""Models of other architectures than ours, which Hugging Face's transformers runs where it is installed."""

import inspect
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chatmill.checkpoints.weights import first_few, read_weights, weight_files
from chatmill.engines.engine import Engine, default_threads, memory_errors
from chatmill.engines.pytorch_engine import resolve_device

MAX_PACKING = 8  # quantized weights in one number of a file
UNLIMITED_CONTEXT = 1 << 20  # tokens, for models that name no context, such as recurrent ones

_REFUSALS = (OSError, ValueError, RuntimeError, ImportError, LookupError, TypeError, AttributeError, ArithmeticError)


class TransformersCache:
    """A causal language model with its own kind of cache. What that cannot rewind to or continue from is read again."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device, self.device = model.to(device).eval(), device, str(device)
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context: int = getattr(config, "max_position_embeddings", None) or UNLIMITED_CONTEXT
        parameters = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._cache_parameter = next((name for name in ("past_key_values", "cache_params") if name in parameters), "")
        self._ids: list[int] = []  # all that were read
        self._cache: Any = None  # of these ids, of the model's own class

    def with_rows(self, rows: int) -> None:
        """The model reads one sequence at a time."""

    @torch.inference_mode()
    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        read, cached = [*self._ids[:past], *ids], past if self._continues_from(past, len(ids)) else 0
        options: dict[str, Any] = {} if all_logits else dict(self._last_only)
        if self._cache_parameter:
            options |= {self._cache_parameter: self._cache if cached else None, "use_cache": True}
        self._cache = None  # after an interrupted run, some layers have grown and others have not
        with memory_errors(self.device):
            output = self._model(torch.tensor([read[cached:]], device=self._device), **options)
            logits: np.ndarray = output.logits[0, slice(None) if all_logits else slice(-1, None)].float().cpu().numpy()
        self._ids, self._cache = read, getattr(output, self._cache_parameter, None)
        return logits

    def _continues_from(self, past: int, count: int) -> bool:
        """Whether the cache, truncated to `past` ids, can read `count` more."""
        if not past or self._cache is None:
            return False
        layers = {type(layer).__name__ for layer in getattr(self._cache, "layers", [None])}
        if past < len(self._ids):
            if layers != {"DynamicLayer"}:
                return False
            self._cache.crop(past - len(self._ids))
        return count == 1 or layers <= {"DynamicLayer", "DynamicSlidingWindowLayer"}  # recurrent ones start anew


def open_transformers_engine(path: Path, why: str, *, device: str, threads: int | None) -> Engine:
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
    torch.set_num_threads(threads or default_threads())
    try:
        config = AutoConfig.from_pretrained(folder, **ours)
        num_layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if num_layers > len(weights):
            raise ValueError(f"{num_layers} layers, but the files hold {len(weights)} tensors")
        with torch.device("meta"):
            shape = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        needed, there = (sum(map(torch.numel, one)) for one in (shape.parameters(), weights.values()))
        if needed > MAX_PACKING * there:  # transformers would fill in what is missing
            raise ValueError(f"it has {needed:,} weights, but the files hold {there:,} numbers")
        dtype = torch.float32 if place.type == "cpu" else "auto"
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True, **ours
        )
    except (StrictDataclassError, *_REFUSALS) as error:
        raise ValueError(f"{why}, and transformers rejects it: {' '.join(str(error).split()):.200}") from error
    model, report = loaded
    if lacking := sorted({*report["missing_keys"], *(str(name) for name, *_ in report["mismatched_keys"])}):
        found = f"{len(lacking)} weights missing or misshapen: {first_few(lacking)}"
        raise ValueError(f"{folder}: transformers finds {found}")
    return Engine(TransformersCache(model, place), "transformers", fingerprint="", template="")
