"""Reads the outputs of a DVC repository's runs without changing the workspace."""

import json
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open

from chatmill.app.experiments import WORKSPACE
from chatmill.app.server.live_runs import training_folder
from chatmill.report.metrics import get_nested

WEIGHTS, CONFIG_FILE = "model.safetensors", "config.json"


class RunFiles:
    """The outputs of runs, in DVC's cache or in the workspace."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError if the folder is not in a DVC repository."""
        from dvc.exceptions import DvcException  # imported here because it takes half a second of a server's start
        from dvc.repo import Repo

        try:
            with Repo(str(folder)) as repo:
                self._root, self._cache = Path(repo.root_dir), Path(repo.cache.local.path)
        except DvcException as error:
            raise ValueError(f"{folder}: {error}") from error

    def files(self, run: dict[str, Any], output: Path) -> dict[str, Path]:
        """The paths of an output's files, by name; empty if one of them is missing on this machine."""
        folder = self._root / output
        if run["rev"] == WORKSPACE and folder.is_dir():
            return {file.name: file for file in folder.iterdir()}
        digest = run["outs"].get(output.as_posix(), {}).get("hash") or ""
        try:
            entries = json.loads(self._cache_path(digest).read_bytes()) if digest.endswith(".dir") else []
            files = {entry["relpath"]: self._cache_path(entry["md5"]) for entry in entries}
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return files if all(file.is_file() for file in files.values()) else {}

    def content(self, run: dict[str, Any], output: Path) -> Any:
        """The content of an output that is a JSON file; None if it is missing on this machine."""
        try:
            return json.loads(self.file(run, output).read_bytes())
        except (OSError, ValueError):
            return None

    def file(self, run: dict[str, Any], output: Path) -> Path:
        """The path of an output that is a file; nothing lies there if it is missing on this machine."""
        digest = run["outs"].get(output.as_posix(), {}).get("hash") or "none"
        return self._root / output if run["rev"] == WORKSPACE else self._cache_path(digest)

    def read(self, revision: str, output: Path, most_bytes: int) -> bytes | None:
        """The bytes of a file that a run wrote, or is writing; None if it is missing or has more than `most_bytes`."""
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_data.index import DataIndexError

        if revision == WORKSPACE:
            with suppress(OSError), (self._root / output).open("rb") as file:
                return _at_most(file, most_bytes)
        try:
            with (
                Repo(str(self._root), rev=None if revision == WORKSPACE else revision) as repo,
                DVCFileSystem(repo).open(output.as_posix()) as stream,
            ):
                return _at_most(stream, most_bytes)
        except (OSError, DataIndexError, DvcException):
            return None

    def read_live(self, revision: str, output: Path, most_bytes: int) -> bytes | None:
        """The bytes of a file that a run is writing in the workspace or a folder of its own; None without it."""
        folder = self._root if revision == WORKSPACE else training_folder(self._root, revision)
        with suppress(OSError):
            if folder:
                with (folder / output).open("rb") as file:
                    return _at_most(file, most_bytes)
        return None

    def _cache_path(self, digest: str) -> Path:
        return self._cache / digest[:2] / digest[2:]


def _at_most(stream: IO[bytes], most_bytes: int) -> bytes | None:
    """The rest of a stream; None if that has more bytes."""
    content = stream.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None


def model_dimensions(model: dict[str, Path]) -> dict[str, int]:
    """Depth, vocabulary, parameters and steps of a model, read from its files; empty if they cannot be read."""
    try:
        config = json.loads(model[CONFIG_FILE].read_bytes())
        with safe_open(model[WEIGHTS], framework="numpy") as weights:
            parameters = sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        shape = {"depth": config["num_hidden_layers"], "vocabulary": config["vocab_size"], "parameters": parameters}
        steps = get_nested(config, "chatmill", "steps")
        return shape | ({"steps": steps} if isinstance(steps, int) else {})
    except (OSError, ValueError, TypeError, KeyError, SafetensorError):
        return {}
