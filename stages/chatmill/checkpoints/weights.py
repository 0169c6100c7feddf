"""Weights in files: safetensors, and those of torch.save. Tensors are memory-mapped: reading takes no memory yet.

A checkpoint of torch.save is read by `weights_only`, so that it runs no code.
"""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chatmill.pipeline.manifest import read_json

Weights = dict[str, Tensor]

WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
STATE_DICT_KEYS = ("model", "state_dict", "model_state_dict")  # where a training checkpoint keeps the weights

_UNREADABLE = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, AssertionError, EOFError)


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of a folder, or of the file named. Raises ValueError where one is no file."""
    if path.is_dir():
        usual = [path / name for name in WHOLE if (path / name).is_file()]
        others = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("tok"))
        chosen = usual[:1] or others
        if len(chosen) != 1:
            names = ", ".join(file.name for file in others) or "none"
            raise ValueError(f"{path}: expected one file of weights, as {', '.join(WHOLE)}: found {names}: name one")
        path = chosen[0]
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file: expected weights")
    if not path.name.endswith(".index.json"):
        return [path]
    shards = [path.with_name(name) for name in _shards(path)]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise ValueError(f"{path}: {len(missing)} of {len(shards)} files are missing: {first_few(missing)}")
    return shards


def read_weights(files: Iterable[Path]) -> Weights:
    """All tensors in some files, by name. Raises ValueError where a file is damaged or has more than weights."""
    weights: Weights = {}
    for file in files:
        found = _read_safetensors(file) if file.suffix == ".safetensors" else _read_checkpoint(file)
        if twice := sorted(found.keys() & weights.keys()):
            raise ValueError(f"{file}: another file holds the same weights: {first_few(twice)}")
        weights |= found
    return weights


def _read_safetensors(file: Path) -> Weights:
    try:
        with safe_open(file, "pt", device="cpu") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: not a safetensors file: {error}") from error


def _read_checkpoint(file: Path) -> Weights:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, *_UNREADABLE) as error:
        raise ValueError(f"{file}: PyTorch cannot read it: {' '.join(str(error).split()):.200}") from error
    for name in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    items = content.items() if isinstance(content, Mapping) else ()
    weights = {name: value for name, value in items if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"{file}: no weights in it, nor in its {', '.join(STATE_DICT_KEYS)}")
    for name, weight in weights.items():
        if weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
            raise ValueError(f"{file}: {name} has the shape {tuple(weight.shape)}, but less data in the file")
    return weights


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        if not names or any(Path(name).name != name or Path(name).suffix not in SUFFIXES for name in names):
            raise ValueError("expected names of files beside it")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: not an index of files of weights: {error}") from error
    return names


def first_few(names: list[str]) -> str:
    shown = [f"{name if name.isprintable() else ascii(name):.200}" for name in names[:3]]
    return ", ".join(shown) + (" …" if len(names) > 3 else "")
