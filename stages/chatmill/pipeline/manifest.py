"""The manifest of an artefact folder: the list of its files with their checksums.

{"format": 1, "kind": "model", "fingerprint": "…", "files": {"config.json": "<sha256>", …}}
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


def write_manifest(folder: Path, *, kind: str, fingerprint: str) -> None:
    """Write the manifest of a finished folder; `fingerprint` is that of its tokenizer."""
    paths = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != MANIFEST_NAME]
    files = {str(file.relative_to(folder)): _sha256(file) for file in paths}
    content = {"format": FORMAT_VERSION, "kind": kind, "fingerprint": fingerprint, "files": files}
    (folder / MANIFEST_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_file_manifest(manifest: Path, files: Iterable[Path], *, kind: str) -> None:
    """Write a manifest of some files beside it, which have no tokenizer."""
    content = {"format": FORMAT_VERSION, "kind": kind, "fingerprint": "", "files": {f.name: _sha256(f) for f in files}}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_file(file: Path, manifest: Path) -> None:
    """Raise ValueError if the manifest lists another checksum of the file; without a manifest, nothing is checked."""
    if not manifest.exists():
        return
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        expected = files.get(file.name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{manifest}: not a manifest: run `chatmill repair`, then `dvc repro`") from error
    if expected is not None and _sha256(file) != expected:
        raise ValueError(f"{file} is damaged or was edited: run `chatmill repair`, then `dvc repro`")


def check_manifest(folder: Path) -> str | None:
    """The fingerprint in a folder's manifest, or None for a folder without one, such as an external model.

    Raises ValueError where a file is missing or has changed.
    """
    manifest = folder / MANIFEST_NAME
    if not manifest.exists():
        return None
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        version, files, fingerprint = content["format"], content["files"].items(), content["fingerprint"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{manifest}: not a manifest: {error}") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{manifest}: format: expected {FORMAT_VERSION}, got {version}: recreate the folder with dvc repro"
        )
    for name, expected in files:
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file} is missing: recreate the folder with dvc repro or dvc checkout")
        if _sha256(file) != expected:
            raise ValueError(f"{file} is damaged or was edited: recreate the folder with dvc repro or dvc checkout")
    return str(fingerprint)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
