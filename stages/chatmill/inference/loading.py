"""Loading a model to chat with: the engine, and the tokenizer and template it was trained with."""

from pathlib import Path
from typing import NamedTuple

from chatmill.inference import onnx_engine
from chatmill.inference.engine import ONNX_FILES, Engine
from chatmill.manifest import check_manifest
from chatmill.template import Template
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.loading import load as load_tokenizer


class Loaded(NamedTuple):
    """What a chat needs."""

    engine: Engine
    tokenizer: ChatTokenizer
    template: Template


def load(path: Path | str, device: str = "auto", threads: int | None = None) -> Loaded:
    """The model in a folder that train_model or export_onnx wrote, or in one ONNX file of such a folder.

    Raises ValueError where something is missing or damaged, or the tokenizer is not the one the model was trained with.
    """
    path = Path(path)
    if path.is_dir():
        folder, engine = path, load_engine(path, (*engines(path), "pytorch")[0], device=device, threads=threads)
    elif not path.exists():
        raise ValueError(f"{path}: no such model: expected a folder that train_model or export_onnx wrote")
    else:
        names = {file: name for name, file in ONNX_FILES.items()}
        folder, engine = path.parent, _open_graph(path, names.get(path.name, path.stem), threads)
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != engine.fingerprint:
        raise ValueError(
            f"{folder}: its tokenizer ({tokenizer.fingerprint[:12]}) is not the one the model was trained with "
            f"({engine.fingerprint[:12]}): make the folder anew (dvc repro)"
        )
    return Loaded(engine, tokenizer, engine.template)


def load_engine(folder: Path, name: str, *, device: str = "auto", threads: int | None = None) -> Engine:
    """The engine of this name in a model's folder: pytorch, or one of ONNX_FILES."""
    if name == "pytorch":
        from chatmill.inference import pytorch  # exports chat where PyTorch is not installed

        return pytorch.open_engine(folder, device=device, threads=threads)
    if name not in ONNX_FILES:
        raise ValueError(f"unknown engine {name!r}: expected one of pytorch, {', '.join(ONNX_FILES)}")
    return _open_graph(folder / ONNX_FILES[name], name, threads)


def engines(folder: Path) -> list[str]:
    """The names of the engines that a folder has a graph for."""
    return [name for name, file in ONNX_FILES.items() if (folder / file).exists()]


def _open_graph(file: Path, name: str, threads: int | None) -> Engine:
    if not file.exists():
        raise ValueError(f"{file} is missing: expected a model that train_model or export_onnx wrote")
    check_manifest(file.parent)
    return onnx_engine.open_engine(file, name=name, threads=threads)
