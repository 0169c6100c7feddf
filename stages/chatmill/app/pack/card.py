"""The model card: what the model is, what it was trained on, how good it is, and how each runtime runs it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from chatmill.app.introduction import TEST_SET, data_prompts
from chatmill.tokenizer.formats.tokenizer_loading import load

LICENSES = "raw/licenses.yaml"  # of the sources, by their names
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
    fields = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    tags = ["chatmill", *(tag for part, tag in {"gguf": "gguf", "onnx": "onnx"}.items() if part in parts)]
    lines = ["---", *(f"{key}: {value}" for key, value in fields.items()), "tags:", *(f"- {tag}" for tag in tags)]
    prompts = data_prompts(data / TEST_SET, generated_only=True)
    lines += ["widget:", *(f"- text: {json.dumps(prompt)}" for prompt in prompts)] if prompts else []
    lines += ["---", "", f"# {name}", "", *_description(data, config), "", "## Run it", ""]
    for part, (title, language, code) in RUN.items():
        if part in ("transformers", "chatmill", *parts):
            lines += [f"{title}:", "", f"```{language}", *code.replace("OUT", ".").splitlines(), "```", ""]
    for part, reason in missing.items():
        lines += [f"There is nothing for {RUN[part][0] if part in RUN else part}: {reason}.", ""]
    figures = _figures(data, config["chatmill"]["fingerprint"])
    for title, section in {"Data": _sources(data), "Figures": figures, "Limits": _limits(config)}.items():
        lines += [f"## {title}", "", *section, ""]
    return "\n".join(lines)


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


def _sources(data: Path) -> Iterator[str]:
    mix = json.loads((data / "metrics/mix.json").read_text(encoding="utf-8"))
    licenses: dict[str, str] = {}
    if (file := data / LICENSES).is_file():
        licenses = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    yield from ("| source | messages | bytes | licence |", "|---|---|---|---|")
    for source, counts in mix["read"].items():
        kept, size = counts["messages"]["kept"], counts["bytes"]["kept"]
        yield f"| {_cell(source)} | {kept:,} | {size:,} | {_cell(licenses.get(source, NOT_STATED))} |"


def _figures(data: Path, fingerprint: str) -> Iterator[str]:
    file = data / "metrics/evaluate.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    if _at(found, "tokenizer.fingerprint") != fingerprint:
        raise ValueError(f"{file}: of another tokenizer than the model's: run `dvc repro`")
    yield "On the test set, which is not trained on; intervals of 95 %:"
    yield from ("", "| | | interval | cases |", "|---|---|---|---|")
    for title, place in FIGURES.items():
        value, interval, count = (_at(part, place) for part in (found, found["intervals"], found["counts"]))
        if isinstance(value, float):
            shown = f"{interval[0]:.3f} to {interval[1]:.3f}" if isinstance(interval, list) else ""
            yield f"| {title} | {value:.3f} | {shown} | {count if isinstance(count, int) else ''} |"
    for title, place in {"counted n-grams": "ngram", "xz": "xz"}.items():
        if isinstance(value := _at(found, f"bits_per_byte.baselines.{place}"), float):
            yield f"| bits per byte of {title}, beside it | {value:.3f} | | |"


def _limits(config: Mapping[str, Any]) -> Iterator[str]:
    yield "- A model of this size does what its data shows it, and knows nothing else. It may repeat its training data."
    yield "- No text is filtered, and nothing was done to make answers harmless."
    if config["chatmill"].get("tools"):
        yield "- Without its tool, results of sums are guesses."


def _at(content: Any, place: str) -> Any:
    for key in place.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
