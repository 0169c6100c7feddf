"""Artefact folders that may come from anywhere: their manifest, and reading their files within a limit of memory.

A manifest is the list of the folder's files with their checksums and sizes in bytes:

{"format": 1, "kind": "model", "fingerprint": "…", "files": {"config.json": "<sha256>", …}, "sizes": {"config.json": …}}

Nothing outside the folder is opened for it, except the objects
of a DVC cache that the files of a folder may be links to.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
MAX_BYTES = 1 << 24
MAX_JSON_BYTES, MAX_JSON_VALUES = 1 << 26, 1 << 22  # twice as much as the largest tokenizer.json known

_REMEDY = "recreate the folder with dvc repro or dvc checkout"
_CACHED = re.compile(r"/[0-9a-f]{2}/[0-9a-f]{30}$")  # DVC names the objects of its cache by their MD5


def write_manifest(folder: Path, *, kind: str, fingerprint: str) -> None:
    paths = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != MANIFEST_NAME]
    files = {str(file.relative_to(folder)): sha256_of(file) for file in paths}
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in paths}
    content = {"format": FORMAT_VERSION, "kind": kind, "fingerprint": fingerprint, "files": files, "sizes": sizes}
    (folder / MANIFEST_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_file_manifest(
    manifest: Path, files: Iterable[Path], *, kind: str, counts: dict[str, Any] | None = None
) -> None:
    content = {
        "format": FORMAT_VERSION,
        "kind": kind,
        "fingerprint": "",
        "files": {f.name: sha256_of(f) for f in files},
    }
    content |= {} if counts is None else {"counts": counts}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_file(file: Path, manifest: Path) -> None:
    """Raise ValueError if the manifest lists another checksum of the file; without a manifest, nothing is checked."""
    if not manifest.exists():
        return
    try:
        files = read_json(manifest, MAX_BYTES)["files"]
        expected = files.get(file.name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{manifest}: not a manifest: run `chatmill repair`, then `dvc repro`") from error
    if expected is not None and sha256_of(file) != expected:
        raise ValueError(f"{file} is damaged or was edited: run `chatmill repair`, then `dvc repro`")


def check_manifest(folder: Path) -> str | None:
    """The fingerprint in a folder's manifest, or None for a folder without one, such as an external model.

    Raises ValueError where a file is missing, has changed, or is not in the folder.
    """
    manifest = folder / MANIFEST_NAME
    if not os.path.lexists(manifest):
        return None
    _file_inside(folder, MANIFEST_NAME)
    try:
        content = read_json(manifest, MAX_BYTES)
        files, sizes = _object(content["files"]), _object(content["sizes"])
        version, fingerprint = content["format"], content["fingerprint"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{manifest}: not a manifest: {error}") from error
    if version != FORMAT_VERSION:
        raise ValueError(f"{manifest}: format: expected {FORMAT_VERSION}, got {version!r:.40}: {_REMEDY}")
    for name, checksum in files.items():
        file = _file_inside(folder, name)
        changed = sizes.get(name, file.stat().st_size) != file.stat().st_size
        if changed or sha256_of(file) != checksum:
            raise ValueError(f"{file} is damaged or was edited: {_REMEDY}")
    return str(fingerprint)


def read_bounded(file: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises ValueError where it is no regular file, or has more bytes, whatever its size."""
    if not file.is_file():
        raise ValueError("not a regular file")
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)  # some files of the system are endless and seem to be empty
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise ValueError(f"over {max_bytes:,} bytes")
    return data


def read_json(file: Path, max_bytes: int = MAX_JSON_BYTES, **options: Any) -> Any:
    """The content of a JSON file; the options are those of json.loads. Raises ValueError where it cannot be read."""
    data = read_bounded(file, max_bytes)
    if data.count(b",") >= MAX_JSON_VALUES:
        raise ValueError(f"over {MAX_JSON_VALUES:,} values")
    try:
        return json.loads(data.decode(), **options)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {data[error.start]:#04x} at {error.start:,}") from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"expected an object, got {content!r:.40}")
    return content


def _file_inside(folder: Path, name: str) -> Path:
    """The file of this name. Raises ValueError unless it is a regular one in the folder, or a link to DVC's cache."""
    if not name.isprintable() or PurePath(name).is_absolute() or os.path.normpath(name) != name or name[:2] == "..":
        raise ValueError(f"{folder / MANIFEST_NAME}: {name!r:.200}: expected the name of a file in its folder")
    file = folder / name
    if not os.path.lexists(file):
        raise ValueError(f"{file} is missing: {_REMEDY}")
    target = Path(os.path.realpath(file))
    if not target.is_relative_to(os.path.realpath(folder)) and not _CACHED.search(target.as_posix()):
        raise ValueError(f"{file} is a link to a file outside its folder: {_REMEDY}")
    if not target.is_file():
        raise ValueError(f"{file} is not a regular file: {_REMEDY}")
    return file


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
