"""What is told of a model before the first message."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from chatmill.app.terminal.text import plural
from chatmill.inference.model_loading import LoadedModel
from chatmill.report.markup import get_nested

MAX_PROMPT, MAX_PROMPTS = 200, 3  # characters of a prompt, and how many are offered
MAX_BYTES, MAX_NESTED, NESTED_LISTS = 1 << 20, 5000, b"- - - - "  # of a file; a deeper level has a longer indent
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def introduce(path: Path, loaded: LoadedModel, num_bytes: int) -> dict[str, Any]:
    """What a model is and was trained on, as `about`, and `prompts` to try; what no file tells is left out.

    `num_bytes` are those of its weights where it runs. The files are its config.json, and in a project the metrics and
    samples of the same tokenizer.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    config = parse_mapping(content_of(folder / "config.json"))
    texts, prompts = "on data of which its files do not tell", list[str]()
    for data in folder.parents[:2]:
        mix, evaluation = (parse_mapping(content_of(data / f"metrics/{name}.json")) for name in ("mix", "evaluate"))
        if get_nested(evaluation, "tokenizer", "fingerprint") == loaded.tokenizer.fingerprint:
            read = get_nested(mix, "read", default={}).items()
            kept = sorted(((get_nested(counts, "messages", "kept"), name) for name, counts in read), reverse=True)
            counted = ", ".join(f"{name} ({plural(count, 'message')})" for count, name in kept)
            texts = f"on {counted}"
            prompts = sample_prompts(content_of(data / "samples.jsonl"))
    layers, width = (config.get(key) for key in ("num_hidden_layers", "hidden_size"))
    shape = f"{layers} layers of {width} channels, " if layers and width else ""
    size = f"{num_bytes / 1e6:,.1f} MB, a context of {loaded.engine.context:,} tokens"
    steps = get_nested(config, "chatmill", "steps")
    duration = f"for {steps:,} steps " if isinstance(steps, int) else ""
    return {"about": f"{shape}{size}. Trained {duration}{texts}.", "prompts": prompts[:MAX_PROMPTS]}


def sample_prompts(samples: bytes) -> list[str]:
    """Prompts from all over the samples of evaluate to which a model gave a complete answer, and gave it once."""
    rows = [parse_mapping(line) for line in samples.splitlines()]
    fixed = [row for row in rows if "true" not in row] or [row for row in rows if not row.get("messages_before")]
    given = Counter(str(row.get("answer")) for row in rows)
    found = [str(row["prompt"]) for row in fixed if row.get("stopped") and given[str(row["answer"])] == 1]
    return [prompt for prompt in found[:: max(1, len(found) // MAX_PROMPTS)] if 0 < len(prompt) <= MAX_PROMPT]


def content_of(file: Path, most: float = MAX_BYTES) -> bytes:
    return file.read_bytes() if file.is_file() and file.stat().st_size <= most else b""


def parse_mapping(content: bytes) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file; none where it has no such content, or might be nested very deeply."""
    if len(content) > MAX_BYTES or content.count(b"[") + content.count(b"{") > MAX_NESTED or NESTED_LISTS in content:
        return {}  # libyaml has no limit: it would use up the stack, and end the server
    try:
        found = json.loads(content) if content.startswith(b"{") else yaml.load(content, LOADER)  # safe
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
