"""Tokenizers. `load(path)` reads any tokenizer folder or file."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "load":
        return importlib.import_module("chatmill.tokenizer.formats.tokenizer_loading").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
