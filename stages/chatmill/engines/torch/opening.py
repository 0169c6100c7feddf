"""Open models in PyTorch's files, own or external: Hugging Face folders, files of torch.save, and llama2.c's.

Models that ours cannot represent are run by transformers, if it is installed.
"""

from pathlib import Path
from typing import Any

from chatmill.checkpoints.configuration import UnsupportedArchitecture
from chatmill.checkpoints.weights import weight_files
from chatmill.engines.engine import Engine
from chatmill.engines.torch import llama2c, transformers_engine
from chatmill.engines.torch.pytorch_engine import PyTorchEngine, resolve_device
from chatmill.model.checkpoint_loading import load_chat_model
from chatmill.pipeline.manifest import check_manifest


def open_torch_engine(path: Path, *, device: str = "auto", threads: int | None = None) -> Engine:
    """The engine of a model folder, or of one file of weights. Raises ValueError where it is damaged or unknown."""
    if not path.exists():
        raise ValueError(f"{path}: no such model")
    folder = path if path.is_dir() else path.parent
    check_manifest(folder)
    files = weight_files(path)
    if llama2c.is_llama2c(files[0]):
        return PyTorchEngine(llama2c.load_llama2c_model(files[0]), template="", device=device, threads=threads)
    try:
        model, content = load_chat_model(path, resolve_device(device))
    except UnsupportedArchitecture as error:
        return transformers_engine.open_transformers_engine(folder, files, str(error), device=device, threads=threads)
    return PyTorchEngine(model, **_origin(content), device=device, threads=threads)


def _origin(content: dict[str, Any]) -> dict[str, str]:
    """The tokenizer and template that a model was trained with; empty unless train_model wrote its config.json."""
    section = content.get("chatmill")
    return {key: str(section.get(key, "")) if isinstance(section, dict) else "" for key in ("fingerprint", "template")}
