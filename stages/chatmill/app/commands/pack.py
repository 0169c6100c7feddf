"""Packs a model for others: one folder for all runtimes, with a model card and checksums."""

import argparse
import json
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from chatmill.app import arguments
from chatmill.app.commands.page import build_page
from chatmill.app.commands.qwen3c import export_qwen3c
from chatmill.app.introduction import MAX_PROMPTS, sample_prompts
from chatmill.app.named_models import repro_commands
from chatmill.app.runs import run_git
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest, sha256_of
from chatmill.pipeline.params_file import parse_params
from chatmill.report.markup import get_nested
from chatmill.tokenizer.formats.tokenizer_loading import load

LICENSES = "raw/licenses.yaml"  # of the sources, by their names
SAMPLES = "samples.jsonl"  # answers that the evaluation wrote down
SHOWN_SAMPLES = 10
TEMPLATE = files("chatmill.app.commands").joinpath("card.md.jinja")
BASELINES = {"counted n-grams": "ngram", "xz": "xz"}
FIGURES = {  # of evaluate.json, by their places
    "bits per byte, all text": "bits_per_byte.all",
    "bits per byte, answers": "bits_per_byte.assistant",
    "right answers to exercises": "skills.macro",
    "right answers, phrasings never trained": "skills.held_back.macro",
    "sensible first answers": "sense.first",
    "sensible answers in turns 2 to 4": "sense.later",
    "facts recalled": "recall",
    "answers that end by themselves": "stops_rate",
    "answers that stand verbatim in the training data": "verbatim.share",
}


def model_card(data: Path, name: str, parts: Sequence[str], missing: Mapping[str, str]) -> str:
    """The card of a model in `data`, in Markdown after the fields that model hubs read."""
    files = ("model/config.json", "metrics/mix.json", "metrics/evaluate.json")
    config, mix, found = (json.loads((data / file).read_text(encoding="utf-8")) for file in files)
    if get_nested(found, "tokenizer", "fingerprint") != config["chatmill"]["fingerprint"]:
        raise ValueError(f"{data / 'metrics/evaluate.json'}: of another tokenizer than the model's: run `dvc repro`")
    sources, samples = _read_sources(data, mix["read"]), (data / SAMPLES).read_bytes()
    asked = [[{"role": "user", "content": prompt}] for prompt in sample_prompts(samples)[:MAX_PROMPTS]]
    fields = _head(name, parts, sources, found) | {"widget": [{"messages": messages} for messages in asked]}
    bits = get_nested(found, "bits_per_byte", "baselines", default={})
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    environment.filters["cell"] = lambda text: " ".join(str(text).split()).replace("|", "\\|")
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        head=yaml.safe_dump(fields, sort_keys=False, allow_unicode=True),
        name=name,
        config=config,
        own={"tools": []} | config["chatmill"],
        tokenizer=load(data / "model"),
        megabytes=(data / "model/model.safetensors").stat().st_size / 1e6,
        samples=[json.loads(line) for line in samples.splitlines()[:SHOWN_SAMPLES]],
        parts=parts,
        missing=missing,
        mix=mix,
        sources=sources,
        figures=list(_measured(found)),
        baselines={title: bits[key] for title, key in BASELINES.items() if isinstance(bits.get(key), float)},
        commit=_commit(data.parent),
        quoted_name=shlex.quote(name),
    )


def _read_sources(data: Path, read: Iterable[str]) -> dict[str, dict[str, str]]:
    """What licenses.yaml says about each source that was read: its license, language and dataset on the hub."""
    file = data / LICENSES
    told = parse_params((file.read_bytes() if file.is_file() else b"") or b"{}", str(file))
    entries = {source: told.get(source) or {} for source in read}
    return {source: one if isinstance(one, dict) else {"license": one} for source, one in entries.items()}


def _head(name: str, parts: Sequence[str], sources: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that model hubs read; a license is named only where each source has one."""

    def told(key: str) -> list[str]:
        values = [one[key] if isinstance(one[key], list) else [one[key]] for one in sources.values() if key in one]
        return list(dict.fromkeys(map(str, chain(*values))))

    licenses = [one.lower() for one in told("license")] if all("license" in one for one in sources.values()) else []
    several = {"license": "other", "license_name": "-and-".join(licenses), "license_link": "README.md"}
    metrics = [
        {"type": place, "name": f"{title} (95 %: {interval})" if interval else title, "value": value}
        for title, place, value, interval, _ in _measured(found)
    ]
    dataset = {"type": "chatmill", "name": "the test set of its sources", "split": "test"}
    result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}
    lists = {"language": told("language"), "datasets": told("dataset")}
    return {
        **({"license": licenses[0]} if len(licenses) == 1 else several if licenses else {}),
        **{key: values for key, values in lists.items() if values},
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["chatmill", *(tag for tag in ("gguf", "onnx") if tag in parts)],
        "model-index": [{"name": name, "results": [result]}],
    }


def _measured(found: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str, str]]:
    """Title, place, value, interval and number of cases of each figure that was measured."""
    for title, place in FIGURES.items():
        keys = place.split(".")
        value, interval, count = (get_nested(part, *keys) for part in (found, found["intervals"], found["counts"]))
        if isinstance(value, float):
            shown = f"{interval[0]:.3f} to {interval[1]:.3f}" if isinstance(interval, list) else ""
            yield title, place, value, shown, str(count) if isinstance(count, int) else ""


def _commit(folder: Path) -> str:
    """The commit that trains the model again; empty where its code or parameters have changed since."""
    try:
        changed = run_git(folder, ["status", "--porcelain", "--", "params.yaml", "dvc.lock", "stages"])
        return "" if changed else run_git(folder, ["rev-parse", "HEAD"]).decode().strip()
    except ValueError:
        return ""


# One folder with all forms of a model, as one uploads it: what the pipeline wrote, a model card and checksums.

CARD, SUMS, PAGE = "README.md", "SHA256SUMS", "chat.html"
FORMATS = "formats.json"  # in which an export has the reason why it is empty
TRANSFORMERS_JS = ("model.onnx", "model_quantized.onnx", "model_int8.onnx", "model_q4.onnx")
_PARTS = {"onnx": "export/onnx", "genai": "export/onnx", "gguf": "export/gguf", "tokenizer": "export/tokenizer"}


def pack(data: Path, out: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """Write the folder `out`, the same bytes each time, from what the pipeline wrote into `data`.

    Returns the parts that were packed, and why others are missing. Raises ValueError where there is no model, a file
    is damaged, or a part is another model's.
    """
    fingerprint = _check(data / "model")
    for file in ("metrics/mix.json", "metrics/evaluate.json", SAMPLES):
        if not (data / file).is_file():
            raise ValueError(f"{data / file}: no such file: the card needs it: run `dvc repro`")
    out.mkdir()
    _copy(data / "model", out, _names(data / "model"))
    packed: list[str] = []
    missing: dict[str, str] = {}
    for part, place in _PARTS.items():
        if reason := _missing(data / place, part, fingerprint):
            missing[part] = reason
        else:
            _copy(data / place, out / part, _chosen(data / place, part))
            packed.append(part)
    if "onnx" in packed:  # transformers.js finds its settings in this file
        shutil.copyfile(data / "export/onnx/config.json", out / "config.json")
    converted: dict[str, Callable[[], object]] = {
        "qwen3c": lambda: export_qwen3c(data / "model", out / "qwen3c"),
        "page": lambda: (out / PAGE).write_bytes(build_page(data / "model", name)),
    }
    for part, convert in converted.items():
        try:
            convert()
            packed.append(part)
        except ValueError as error:
            missing[part] = str(error).removeprefix(f"{data / 'model'}: ")  # no path: the same bytes for any `data`
    (out / CARD).write_text(model_card(data, name, packed, missing), encoding="utf-8")
    (out / SUMS).write_text("".join(_sums(out)), encoding="utf-8")
    return packed, missing


def _check(folder: Path) -> str:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder: run {repro_commands()} first")
    fingerprint = check_manifest(folder)
    if fingerprint is None:
        raise ValueError(f"{folder / MANIFEST_NAME} is missing: expected a folder that a stage wrote")
    return fingerprint


def _missing(folder: Path, part: str, fingerprint: str) -> str | None:
    if not folder.is_dir():
        return f"{folder}: no such folder: run `dvc repro`"
    if _check(folder) != fingerprint:
        raise ValueError(f"{folder}: of another tokenizer than the model's: run `dvc repro`")
    if _chosen(folder, part):
        return None
    reasons = json.loads((folder / FORMATS).read_bytes()) if (folder / FORMATS).is_file() else {}
    return next((one["reason"] for one in reasons.values() if "reason" in one), f"{folder} has no files of it")


def _chosen(folder: Path, part: str) -> list[str]:
    names = _names(folder)
    if part == "onnx":
        return [name for name in names if name.removesuffix("_data") in TRANSFORMERS_JS]
    if part == "genai":
        return [name for name in names if name not in TRANSFORMERS_JS] if "model_genai.onnx" in names else []
    return names if part != "gguf" or any(folder.glob("*.gguf")) else []


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name not in (MANIFEST_NAME, FORMATS))


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
        yield f"{sha256_of(file)}  {file.relative_to(folder).as_posix()}\n"


EPILOG = """examples:
  chatmill pack packed
  chatmill pack packed --name parcel-helper

The folder has what transformers, transformers.js, ONNX Runtime GenAI, llama.cpp
and ollama load, the tokenizer in other formats, a page that chats, a model card
with figures from the metrics, and SHA256SUMS. The same run gives the same bytes.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("out", type=Path, metavar="OUT", help="folder to write")
    add("--data", type=Path, default=Path("data"), metavar="FOLDER", help="what the pipeline wrote (default: data)")
    add("--name", default="chatmill", help="the model's name in the card and on the page (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    with arguments.new_output(options.out) as place:
        packed, missing = pack(options.data, place, options.name)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {size / 1e6:,.1f} MB: transformers, {', '.join(packed)}")
    for part, reason in missing.items():
        print(f"left out: {part}: {reason}")
