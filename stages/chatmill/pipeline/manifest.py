"""The list of files that every artefact folder carries, with their checksums.

{"format": 1, "kind": "model", "fingerprint": "…", "files": {"config.json": "<sha256>", …}}
"""

import hashlib
import json
from pathlib import Path

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


def write_manifest(folder: Path, *, kind: str, fingerprint: str) -> None:
    """List the files of a finished folder; `fingerprint` is that of the tokenizer it belongs to."""
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != MANIFEST_NAME]
    files = {str(file.relative_to(folder)): _sha256(file) for file in found}
    content = {"format": FORMAT_VERSION, "kind": kind, "fingerprint": fingerprint, "files": files}
    (folder / MANIFEST_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_manifest(folder: Path) -> str | None:
    """The fingerprint in a folder's manifest, or None where there is none: a folder made elsewhere.

    Raises ValueError where a file is missing or is not what was written.
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
            f"{manifest}: format {version}, but this chatmill reads {FORMAT_VERSION}: make the folder anew"
        )
    for name, expected in files:
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file} is missing: make the folder anew (dvc repro or dvc checkout)")
        if _sha256(file) != expected:
            raise ValueError(f"{file} is damaged or was edited: make the folder anew (dvc repro or dvc checkout)")
    return str(fingerprint)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
