"""Where a long run goes on after it was killed: the same parameters, inputs and code find the same file."""

import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from chatmill.stage import SCRATCH


def fingerprint(parameters: dict[str, Any], inputs: Iterable[Path]) -> str:
    """sha256 of all that a run's result follows from: parameters, input files, loaded code and the kind of machine."""
    loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    code = sorted({file for name, file in loaded.items() if file and name.split(".")[0] in ("__main__", "chatmill")})
    machine = [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    digest = hashlib.sha256(json.dumps([parameters, machine], sort_keys=True).encode())
    for file in [*inputs, *map(Path, code)]:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


class Checkpoint:
    """A state on disk, replaced as a whole; in the scratch folder at the top, which neither git nor DVC sees."""

    def __init__(self, name: str) -> None:
        self.folder = Path(os.environ.get("DVC_ROOT", "."), SCRATCH, "resume", name)
        self.file = self.folder / "state.pt"

    def save(self, state: Any) -> None:
        """Replace what is there; a process killed meanwhile leaves the former state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        torch.save(state, content)
        place = self.folder / f"{os.getpid()}.part"
        with place.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        place.replace(self.file)

    def load(self) -> Any | None:
        """The last state; None where there is none."""
        return torch.load(self.file, weights_only=True) if self.file.exists() else None

    def remove(self) -> None:
        """Forget it: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
