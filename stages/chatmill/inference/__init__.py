"""Inference: `load_model(path, device="auto")` takes any model folder or file."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "load_model":
        return importlib.import_module("chatmill.inference.model_loading").load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
