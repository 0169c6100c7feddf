"""Manifests of folders and files that stages write: the checksums by which damage and edits are found.

{"format": 1, "kind": "model", "fingerprint": "…", "files": {"config.json": "<sha256>", …}, "sizes": {"config.json": …}}
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
_REMEDY = "recreate the folder with dvc repro or dvc checkout"


def write_manifest(folder: Path, *, kind: str, fingerprint: str) -> None:
    paths = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != MANIFEST_NAME]
    files = {str(file.relative_to(folder)): file for file in paths}
    sizes = {name: file.stat().st_size for name, file in files.items()}
    _write(folder / MANIFEST_NAME, files, kind, fingerprint, {"sizes": sizes})


def write_file_manifest(
    manifest: Path, files: Iterable[Path], *, kind: str, counts: dict[str, Any] | None = None
) -> None:
    """Write the checksums of single files for `check_file`, which needs neither a fingerprint nor sizes."""
    _write(manifest, {file.name: file for file in files}, kind, "", {} if counts is None else {"counts": counts})


def _write(manifest: Path, files: dict[str, Path], kind: str, fingerprint: str, more: dict[str, Any]) -> None:
    checksums = {name: sha256_of(file) for name, file in files.items()}
    content = {"format": FORMAT_VERSION, "kind": kind, "fingerprint": fingerprint, "files": checksums, **more}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_file(file: Path, manifest: Path) -> None:
    """Raise ValueError if the manifest lists another checksum of the file; without a manifest, nothing is checked."""
    if not manifest.exists():
        return
    try:
        expected = read_json(manifest)["files"].get(file.name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{manifest}: not a manifest: run `chatmill repair`, then `dvc repro`") from error
    if expected is not None and sha256_of(file) != expected:
        raise ValueError(f"{file} is damaged or was edited: run `chatmill repair`, then `dvc repro`")


def check_manifest(folder: Path) -> str | None:
    """The fingerprint in a folder's manifest, or None for a folder without one, such as an external model.

    Raises ValueError where a file is missing, has changed, or is not in the folder.
    """
    manifest = folder / MANIFEST_NAME
    if not manifest.exists():
        return None
    try:
        content = read_json(manifest)
        files, sizes = dict(content["files"]), dict(content["sizes"])
        version, fingerprint = content["format"], content["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest}: not a manifest: {error}") from error
    if version != FORMAT_VERSION:
        raise ValueError(f"{manifest}: format: expected {FORMAT_VERSION}, got {version!r:.40}: {_REMEDY}")
    for name, checksum in files.items():
        file = folder / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise ValueError(f"{manifest}: {name!r:.200}: expected the name of a file in its folder")
        if not file.is_file():
            raise ValueError(f"{file} is missing: {_REMEDY}")
        changed = sizes.get(name, file.stat().st_size) != file.stat().st_size
        if changed or sha256_of(file) != checksum:
            raise ValueError(f"{file} is damaged or was edited: {_REMEDY}")
    return str(fingerprint)


def read_json(file: Path, **options: Any) -> Any:
    """The content of a JSON file; the options are those of json.loads.

    Raises ValueError, which does not name the file, where it cannot be read or is not JSON.
    """
    try:
        return json.loads(file.read_bytes().decode(), **options)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start:,}") from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
