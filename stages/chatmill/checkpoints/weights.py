"""Weights in files: safetensors, and those of torch.save. Tensors are memory-mapped: reading takes no memory yet.

A safetensors file begins with the length of its header (u64, little-endian) and the header, which lists the tensors in
JSON. A checkpoint of torch.save is a zip: `data.pkl` lists the tensors, and `data/0`, `data/1` … hold their numbers. A
malicious one may take more memory than there is, or run code; both are rejected before PyTorch reads it.
"""

import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chatmill.pipeline.manifest import read_json

Weights = dict[str, Tensor]

WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
STATE_DICT_KEYS = ("model", "state_dict", "model_state_dict")  # where a training checkpoint keeps the weights
MAX_TENSORS = 1 << 16  # in all files of a model; 200,000 empty ones took 530 MB
MAX_HEADER_BYTES, MAX_PICKLE_BYTES, MAX_INDEX_BYTES = 1 << 23, 1 << 22, 1 << 23  # lists of some 30,000 tensors and more
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

_SAFE_GLOBALS = re.compile(
    r"collections OrderedDict|torch (Size|device|[a-z]+[0-9]+|[A-Za-z0-9]+Storage)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter|parameter_with_state)"
)
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
        room = MAX_TENSORS - len(weights)
        found = _read_safetensors(file, room) if file.suffix == ".safetensors" else _read_checkpoint(file)
        if twice := sorted(found.keys() & weights.keys()):
            raise ValueError(f"{file}: another file holds the same weights: {first_few(twice)}")
        weights |= found
    return weights


def _read_safetensors(file: Path, room: int) -> Weights:
    try:
        _check_header(file, room)
        with safe_open(file, "pt", device="cpu") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: not a safetensors file: {error}") from error


def _check_header(file: Path, room: int) -> None:
    """Raise ValueError where the header of a safetensors file is too long, or may list more tensors than `room`."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            found = f"a header of {length:,} bytes"
            raise ValueError(f"{file}: not a safetensors file: {found}: expected at most {MAX_HEADER_BYTES:,}")
        if stream.read(length).count(b"{") > room + 2:  # one for each tensor, the metadata, and all of them
            raise ValueError(f"{file}: over {MAX_TENSORS:,} tensors: save the model in fewer")


def _read_checkpoint(file: Path) -> Weights:
    _check_checkpoint(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, *_UNREADABLE) as error:
        raise ValueError(f"{file}: PyTorch cannot read it: {' '.join(str(error).split()):.200}") from error
    for name in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    weights = {name: value for name, value in _items(content) if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"{file}: no weights in it, nor in its {', '.join(STATE_DICT_KEYS)}")
    for name, weight in weights.items():
        if weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
            raise ValueError(f"{file}: {name} has the shape {tuple(weight.shape)}, but less data in the file")
    return weights


def _check_checkpoint(file: Path) -> None:
    """Raise ValueError unless torch.save wrote a file, which has weights only and is as large as it states."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if any(entry.compress_type or entry.compress_size != entry.file_size for entry in entries):
                raise ValueError("its parts are compressed")
            if sum(entry.file_size for entry in entries) > file.stat().st_size:
                raise ValueError("its parts are larger than the file")
            lists = [entry for entry in entries if entry.filename.lower().endswith("data.pkl")]
            if len(lists) != 1 or lists[0].file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"expected one data.pkl of at most {MAX_PICKLE_BYTES:,} bytes")
            _check_pickle(archive.read(lists[0]))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{file}: not a checkpoint of PyTorch 1.6 or later: save it again") from error
    except (OSError, RuntimeError, ValueError, EOFError, struct.error) as error:
        raise ValueError(f"{file}: {error}") from error


def _items(content: Any) -> Iterable[tuple[str, Any]]:
    return content.items() if isinstance(content, Mapping) else ()


def _check_pickle(data: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(data):
        name = str(argument)
        if opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
            raise ValueError("its data.pkl is not as torch.save writes it")
        if opcode.name == "GLOBAL" and not _SAFE_GLOBALS.fullmatch(name):
            raise ValueError(
                f"loading it would call {name.replace(' ', '.')}: weights need no code: save the state_dict alone, "
                "or as safetensors"
            )


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(read_json(index, MAX_INDEX_BYTES)["weight_map"].values()))
        if not names or any(Path(name).name != name or Path(name).suffix not in SUFFIXES for name in names):
            raise ValueError("expected names of files beside it")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: not an index of files of weights: {error}") from error
    return names


def first_few(names: list[str]) -> str:
    shown = [f"{name if name.isprintable() else ascii(name):.200}" for name in names[:3]]
    return ", ".join(shown) + (" …" if len(names) > 3 else "")
