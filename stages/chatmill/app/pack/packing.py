"""One folder with all forms of a model, as one uploads it: what the pipeline wrote, a model card and checksums.

README.md                     the model card
config.json, model.safetensors, tokenizer.json …      transformers
onnx/                         transformers.js, beside the files above
genai/                        ONNX Runtime GenAI, and `chatmill chat` without PyTorch
gguf/                         llama.cpp, ollama
tokenizer/                    the tokenizer in other formats
chat.html                     a page to chat with it
SHA256SUMS
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chatmill.app.pack.card import model_card
from chatmill.app.page.builder import build_page
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest

CARD, SUMS, PAGE = "README.md", "SHA256SUMS", "chat.html"
FORMATS = "formats.json"  # in which an export has the reason why it is empty
TRANSFORMERS_JS = ("model.onnx", "model_quantized.onnx", "model_int8.onnx", "model_q4.onnx")
_PARTS = {"onnx": "export/onnx", "genai": "export/onnx", "gguf": "export/gguf", "tokenizer": "export/tokenizer"}


class Pack(NamedTuple):
    """What was packed: the parts, and why others are missing."""

    parts: list[str]
    missing: dict[str, str]


def pack(data: Path, out: Path, name: str) -> Pack:
    """Write the folder `out`, the same bytes each time, from what the pipeline wrote into `data`.

    Raises ValueError where there is no model, a file is damaged, or a part is another model's.
    """
    fingerprint = _check(data / "model")
    for metrics in ("mix.json", "evaluate.json"):
        if not (data / "metrics" / metrics).is_file():
            raise ValueError(f"{data / 'metrics' / metrics}: no such file: the card needs it: run `dvc repro`")
    out.mkdir()
    _copy(data / "model", out, [file.name for file in _files(data / "model")])
    packed = Pack([], {})
    for part, place in _PARTS.items():
        if reason := _missing(data / place, part, fingerprint):
            packed.missing[part] = reason
            continue
        _copy(data / place, out / part, _chosen(data / place, part))
        packed.parts.append(part)
    if "onnx" in packed.parts:  # transformers.js finds its settings in this file
        shutil.copyfile(data / "export/onnx/config.json", out / "config.json")
    try:
        (out / PAGE).write_bytes(build_page(data / "model", name))
        packed.parts.append("page")
    except ValueError as error:
        packed.missing["page"] = str(error)
    (out / CARD).write_text(model_card(data, name, packed.parts, packed.missing), encoding="utf-8")
    (out / SUMS).write_text("".join(_sums(out)), encoding="utf-8")
    return packed


def is_pack(folder: Path) -> bool:
    """Whether a folder is one that `pack` wrote."""
    return (folder / SUMS).is_file() and (folder / CARD).is_file()


def _check(folder: Path) -> str:
    """The fingerprint of the tokenizer in a folder that a stage wrote."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder: run `dvc repro` first")
    fingerprint = check_manifest(folder)
    if fingerprint is None:
        raise ValueError(f"{folder / MANIFEST_NAME} is missing: expected a folder that a stage wrote")
    return fingerprint


def _missing(folder: Path, part: str, fingerprint: str) -> str | None:
    """Why a part cannot be packed; None if it can."""
    if not folder.is_dir():
        return f"{folder}: no such folder: run `dvc repro`"
    if _check(folder) != fingerprint:
        raise ValueError(f"{folder}: of another tokenizer than the model's: run `dvc repro`")
    if _chosen(folder, part):
        return None
    reasons = json.loads((folder / FORMATS).read_text(encoding="utf-8")) if (folder / FORMATS).is_file() else {}
    found = [entry["reason"] for entry in reasons.values() if "reason" in entry]
    return found[0] if found else f"{folder} has no files of it"


def _chosen(folder: Path, part: str) -> list[str]:
    """The files of a part, by their names in a folder of the pipeline."""
    names = [file.name for file in _files(folder)]
    match part:
        case "onnx":
            return [name for name in names if name in TRANSFORMERS_JS]
        case "genai":
            has_graph = "model_genai.onnx" in names
            return [name for name in names if name not in TRANSFORMERS_JS] if has_graph else []
        case "gguf":
            return names if any(name.endswith(".gguf") for name in names) else []
    return names


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name not in (MANIFEST_NAME, FORMATS))


def _copy(folder: Path, out: Path, names: list[str]) -> None:
    out.mkdir(exist_ok=True)
    for name in names:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, out / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(folder / name, out / name)


def _sums(folder: Path) -> Iterator[str]:
    """The lines that `sha256sum --check` reads."""
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as stream:
            yield f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.relative_to(folder).as_posix()}\n"
