import hashlib
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

SUFFIX = ".safetensors"


_NAME = re.compile(rf"(\d+)-([0-9a-f]{{64}}){re.escape(SUFFIX)}")


_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


_OUTLINE = "state"  # of the metadata


def is_state_name(name: str) -> bool:
    """Whether a file of this name is a state."""
    return _NAME.fullmatch(name) is not None


def state_name(number: int, sha256: str) -> str:
    """The name of the file."""
    return f"{number}-{sha256}{SUFFIX}"


def state_number(name: str) -> int:
    """The number in the name of a file."""
    return int(name.split("-")[0])


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state in the order of the file: those of wide numbers first, which need to be aligned."""
    return [tensor for _, tensor in _numbered(state)]


def write_state(state: Any, tensors: Iterable[Tensor], place: Path) -> str:
    """Write a state and return the sha256 of the file. Raises OSError where there is no space for it.

    `tensors` are those of `tensors_of`, whole and on the CPU: the state's own may be sharded.
    """
    with place.open("wb", buffering=0) as file:
        digested = _HashingWriter(file)
        digested.write(_header(state))
        for tensor in tensors:
            digested.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if digested.error:
            reason = f"{digested.error.strerror} for a state of {digested.size / 1e6:,.1f} MB"
            raise OSError(digested.error.errno, reason)
        os.fsync(file.fileno())
    return digested.digest.hexdigest()


def is_whole(file: Path, name: str) -> bool:
    """Whether the content of a file is that of the state of this name."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == name.removesuffix(SUFFIX).split("-")[1]


def read_state(file: Path) -> Any:
    """The state in a file, whose tensors are mapped from it; no code of it is run."""
    with safe_open(file, "pt") as content:
        outline = torch.load(BytesIO(b64decode(content.metadata()[_OUTLINE])), weights_only=True)
        names = map(str, range(len(content.keys())))
        return tree_map_only(Tensor, lambda _: content.get_tensor(next(names)), outline)


def _numbered(state: Any) -> list[tuple[int, Tensor]]:
    """The tensors of a state in the order of the file, with their numbers in the order of the state."""
    tensors = enumerate(leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    return sorted(tensors, key=lambda numbered: -numbered[1].element_size())


def _header(state: Any) -> bytes:
    """The beginning of the file: where each tensor is, by its number in the state, and the outline."""
    outline, end = BytesIO(), 0
    torch.save(tree_map_only(Tensor, lambda _: torch.empty(0), state), outline)
    header: dict[str, Any] = {"__metadata__": {_OUTLINE: b64encode(outline.getvalue()).decode()}}
    for number, tensor in _numbered(state):
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[str(number)] = {"dtype": _TYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


class _HashingWriter:
    """A file that is hashed as it is written; after an OSError, which it stores, it counts bytes alone."""

    def __init__(self, file: FileIO) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, content: bytes | memoryview) -> None:
        """Write the content and count its bytes."""
        rest = memoryview(content)
        self.size += rest.nbytes
        self.digest.update(rest)
        try:
            while rest and self.error is None:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.error = error
