"""Files that DVC does not track, told apart by a checksum among the parameters."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def check_sha256(files: Iterable[Path], sha256: str, parameter: str, source: Path) -> None:
    """Raise ValueError, which tells the right one, where the files have another checksum than the parameter says.

    Of several files it is that of all, one after the other.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    if digest.hexdigest() != sha256:
        raise ValueError(f"{parameter} is not that of {source}: set it to {digest.hexdigest()}")
