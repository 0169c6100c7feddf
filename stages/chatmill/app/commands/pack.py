"""Packs a model for others: one folder for all runtimes, with a model card and checksums."""

import argparse
import hashlib
import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from chatmill.app import arguments
from chatmill.app.commands.page import build_page
from chatmill.app.commands.qwen3c import export_qwen3c
from chatmill.app.named_models import MAX_PROMPTS, repro_commands, sample_prompts
from chatmill.app.runs import run_git
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest
from chatmill.pipeline.params_file import parse_params
from chatmill.tokenizer.formats.tokenizer_loading import load

# The model card: what the model is, what it was trained on, how good it is, and how each runtime runs it.

LICENSES = "raw/licenses.yaml"  # of the sources, by their names
SAMPLES = "samples.jsonl"  # answers that the evaluation wrote down
SHOWN_SAMPLES = 10
NOT_STATED = "not stated"
RUN = {  # title and code for each part; OUT is the folder
    "transformers": (
        "transformers",
        "python",
        "import transformers\n"
        "chat = transformers.pipeline('text-generation', 'OUT', max_new_tokens=64, do_sample=False)\n"
        "print(chat([{'role': 'user', 'content': 'Hello!'}])[0]['generated_text'][-1]['content'])",
    ),
    "chatmill": ("chatmill", "sh", "chatmill chat --model OUT -p 'Hello!'"),
    "onnx": (
        "transformers.js",
        "js",
        "import { pipeline } from '@huggingface/transformers';\n"
        "const chat = await pipeline('text-generation', 'OUT', { dtype: 'fp32' });\n"
        "console.log((await chat([{ role: 'user', content: 'Hello!' }]))[0].generated_text.at(-1).content);",
    ),
    "genai": (
        "ONNX Runtime GenAI",
        "python",
        "import onnxruntime_genai as genai\n"
        "model = genai.Model('OUT/genai')\n"
        "tokenizer, generator = genai.Tokenizer(model), genai.Generator(model, genai.GeneratorParams(model))\n"
        'messages = \'[{"role": "user", "content": "Hello!"}]\'\n'
        "prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)\n"
        "ids = tokenizer.encode(prompt)\n"
        "generator.append_tokens(ids)\n"
        "while not generator.is_done():\n"
        "    generator.generate_next_token()\n"
        "print(tokenizer.decode(generator.get_sequence(0)[len(ids) :]))",
    ),
    "gguf": (
        "llama.cpp, ollama",
        "sh",
        "llama-server -m OUT/gguf/model-f32.gguf --jinja\nollama create NAME -f OUT/gguf/Modelfile && ollama run NAME",
    ),
    "qwen3c": ("qwen3.c", "sh", "runq OUT/qwen3c/model.bin -t 0"),
    "page": ("a browser, without a server or a network", "sh", "xdg-open OUT/chat.html"),
}
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
    config = json.loads((data / "model/config.json").read_text(encoding="utf-8"))
    mix = json.loads((data / "metrics/mix.json").read_text(encoding="utf-8"))
    found = json.loads((data / "metrics/evaluate.json").read_text(encoding="utf-8"))
    if _at(found, "tokenizer.fingerprint") != config["chatmill"]["fingerprint"]:
        raise ValueError(f"{data / 'metrics/evaluate.json'}: of another tokenizer than the model's: run `dvc repro`")
    sources = _read_sources(data, mix["read"])
    prompts = sample_prompts((data / SAMPLES).read_bytes())[:MAX_PROMPTS]
    fields = _head(name, parts, sources, found) | {"widget": [{"messages": _asked(prompt)} for prompt in prompts]}
    head = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    lines = ["---", *head.splitlines(), "---", "", f"# {name}", "", *_description(data, config), ""]
    lines += [*_transcript(data), "## Run it", ""]
    for part, (title, language, code) in RUN.items():
        if part in ("transformers", "chatmill", *parts):
            lines += [f"{title}:", "", f"```{language}", *code.replace("OUT", ".").splitlines(), "```", ""]
    for part, reason in missing.items():
        lines += [f"There is nothing for {RUN[part][0] if part in RUN else part}: {reason}.", ""]
    sections = {"Data": _data(mix, sources), "Figures": _figures(found), "Limits": _limits(config)}
    for title, section in (sections | {"Repeat it": _commands(data, name)}).items():
        lines += [f"## {title}", "", *section, ""]
    return "\n".join(lines)


def _asked(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


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
        {"type": place, "name": f"{title}{f' (95 %: {interval})' if interval else ''}", "value": value}
        for title, place, value, interval, _ in _measured(found)
    ]
    dataset = {"type": "chatmill", "name": "the test set of its sources", "split": "test"}
    result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}
    fields = {"license": licenses[0]} if len(licenses) == 1 else several if licenses else {}
    return fields | {
        **{
            key: values for key, values in {"language": told("language"), "datasets": told("dataset")}.items() if values
        },
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["chatmill", *(tag for tag in ("gguf", "onnx") if tag in parts)],
        "model-index": [{"name": name, "results": [result]}],
    }


def _description(data: Path, config: Mapping[str, Any]) -> Iterator[str]:
    tokenizer, own = load(data / "model"), config["chatmill"]
    size = (data / "model/model.safetensors").stat().st_size
    yield (
        f"A chat model with {config['num_hidden_layers']} layers of {config['hidden_size']} channels "
        f"({size / 1e6:,.1f} MB), a context of {config['max_position_embeddings']:,} tokens and "
        f"{tokenizer.vocab_size:,} tokens of the type {tokenizer.vocabulary.type}, trained for {own['steps']:,} steps "
        f"by chatmill. Its architecture is `{config['architectures'][0]}`, its chat template `{own['template']}`."
    )
    if tools := own.get("tools"):
        yield (
            f"It calls {', '.join(tools)} where the template's `tools` declare it: the program that runs the model "
            "has to run the call and give the result back; `chatmill chat` and chat.html do."
        )


def _transcript(data: Path) -> Iterator[str]:
    yield "It says, greedy and unedited, to the first prompts of its evaluation, each in a chat of its own:"
    yield ""
    with (data / SAMPLES).open(encoding="utf-8") as samples:
        for sample in map(json.loads, islice(samples, SHOWN_SAMPLES)):
            for line in f"> {sample['prompt']}\n{sample['answer']}\n".split("\n"):
                yield f"    {line}".rstrip()


def _data(mix: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    conversations = mix["conversations"]
    yield f"Trained on {conversations['train']:,} conversations, measured on {conversations['test']:,} others, from:"
    yield from ("", "| source | messages | bytes | licence |", "|---|---|---|---|")
    for source, counts in mix["read"].items():
        kept, size = counts["messages"]["kept"], counts["bytes"]["kept"]
        yield f"| {_cell(source)} | {kept:,} | {size:,} | {_cell(sources[source].get('license', NOT_STATED))} |"


def _measured(found: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str, str]]:
    """Title, place, value, interval and number of cases of each figure that was measured."""
    for title, place in FIGURES.items():
        value, interval, count = (_at(part, place) for part in (found, found["intervals"], found["counts"]))
        if isinstance(value, float):
            shown = f"{interval[0]:.3f} to {interval[1]:.3f}" if isinstance(interval, list) else ""
            yield title, place, value, shown, str(count) if isinstance(count, int) else ""


def _figures(found: Mapping[str, Any]) -> Iterator[str]:
    yield "On the test set, which is not trained on; intervals of 95 %:"
    yield from ("", "| | | interval | cases |", "|---|---|---|---|")
    for title, _, value, interval, count in _measured(found):
        yield f"| {title} | {value:.3f} | {interval} | {count} |"
    for title, place in {"counted n-grams": "ngram", "xz": "xz"}.items():
        if isinstance(value := _at(found, f"bits_per_byte.baselines.{place}"), float):
            yield f"| bits per byte of {title}, beside it | {value:.3f} | | |"


def _limits(config: Mapping[str, Any]) -> Iterator[str]:
    yield "- A model of this size does what its data shows it, and knows nothing else. It may repeat its training data."
    yield "- No text is filtered, and nothing was done to make answers harmless."
    if config["chatmill"].get("tools"):
        yield "- Without its tool, results of sums are guesses."


def _commands(data: Path, name: str) -> Iterator[str]:
    """What trains the model again: on the same kind of processor, with the same bytes."""
    try:
        changed = run_git(data.parent, ["status", "--porcelain", "--", "params.yaml", "dvc.lock", "stages"])
        commit = "" if changed else run_git(data.parent, ["rev-parse", "HEAD"]).decode().strip()
    except ValueError:
        commit = ""
    yield "In a clone of its project, " + (f"commit {commit}:" if commit else "whose last changes were not committed:")
    yield from ("", "```sh", "dvc repro", f"chatmill pack OUT --name {shlex.quote(name)}", "```")


def _at(content: Any, place: str) -> Any:
    for key in place.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


# One folder with all forms of a model, as one uploads it: what the pipeline wrote, a model card and checksums.

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
    for name_of_file in ("metrics/mix.json", "metrics/evaluate.json", SAMPLES):
        if not (data / name_of_file).is_file():
            raise ValueError(f"{data / name_of_file}: no such file: the card needs it: run `dvc repro`")
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
        export_qwen3c(data / "model", out / "qwen3c")
        packed.parts.append("qwen3c")
    except ValueError as error:
        packed.missing["qwen3c"] = str(error).removeprefix(f"{data / 'model'}: ")  # the same for every pack
    try:
        (out / PAGE).write_bytes(build_page(data / "model", name))
        packed.parts.append("page")
    except ValueError as error:
        packed.missing["page"] = str(error)
    (out / CARD).write_text(model_card(data, name, packed.parts, packed.missing), encoding="utf-8")
    (out / SUMS).write_text("".join(_sums(out)), encoding="utf-8")
    return packed


def _check(folder: Path) -> str:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder: run {repro_commands()} first")
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
    names = [file.name for file in _files(folder)]
    match part:
        case "onnx":
            return [name for name in names if name.removesuffix("_data") in TRANSFORMERS_JS]
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


# Pack a model for others: one folder for all runtimes, with a model card and checksums.

EPILOG = """examples:
  chatmill pack packed
  chatmill pack packed --name parcel-helper --force

The folder has what transformers, transformers.js, ONNX Runtime GenAI, llama.cpp
and ollama load, the tokenizer in other formats, a page that chats, a model card
with figures from the metrics, and SHA256SUMS. The same run gives the same bytes.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("out", type=Path, metavar="OUT", help="folder to write")
    add("--data", type=Path, default=Path("data"), metavar="FOLDER", help="what the pipeline wrote (default: data)")
    add("--name", default="chatmill", help="the model's name in the card and on the page (default: %(default)s)")
    add("--force", action="store_true", help="replace a folder that was packed before")


def run(options: argparse.Namespace) -> None:
    is_pack = (options.out / SUMS).is_file() and (options.out / CARD).is_file()
    if options.force and options.out.exists() and not is_pack:
        raise ValueError(f"{options.out}: was not packed by chatmill, so it is not replaced: name a new folder")
    with arguments.new_output(options.out, replaces=options.force) as place:
        packed = pack(options.data, place, options.name)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {size / 1e6:,.1f} MB: transformers, {', '.join(packed.parts)}")
    for part, reason in packed.missing.items():
        print(f"left out: {part}: {reason}")
