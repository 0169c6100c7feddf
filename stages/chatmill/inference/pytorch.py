"""The PyTorch engine: runs a model folder on the processor or an accelerator."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from chatmill.inference.engine import check_append, check_rewind, default_threads
from chatmill.model import ChatModel, load_model
from chatmill.template import Template


class PyTorchEngine:
    """A ChatModel with its cache. The number of threads is PyTorch's own, one for the whole process."""

    def __init__(
        self,
        model: ChatModel,
        *,
        fingerprint: str = "",
        template: Template = "chatml",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.name, self.fingerprint, self.template = "pytorch", fingerprint, template
        self.device = choose_device(device)
        self.vocab_size, self.context = model.config.vocab_size, model.config.max_position_embeddings
        torch.set_num_threads(threads or default_threads())
        self._model = model.to(self.device).eval()
        with self.device:
            self._cache = model.new_cache(1, self.context)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of what comes next."""
        check_append(self, ids)
        return self._run(ids, last_only=True)[-1]

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self._cache.length = length

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._run(ids, last_only=False)
        self.rewind(0)
        return logits

    @torch.inference_mode()
    def _run(self, ids: Sequence[int], *, last_only: bool) -> np.ndarray:
        batch = torch.tensor([list(ids)], device=self.device)
        return self._model(batch, cache=self._cache, last_only=last_only)[0].float().cpu().numpy()


def open_engine(folder: Path, *, device: str = "auto", threads: int | None = None) -> PyTorchEngine:
    """The engine of a model folder. Raises ValueError where it is damaged, or was not written by train_model."""
    model, config = load_model(folder)
    if "chatmill" not in config:
        raise ValueError(f"{folder / 'config.json'}: no section chatmill: expected a folder that train_model wrote")
    origin = {key: config["chatmill"][key] for key in ("fingerprint", "template")}
    return PyTorchEngine(model, **origin, device=device, threads=threads)


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator where there is one, else the processor."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r}: PyTorch cannot use it here ({reason}): try cpu") from error
