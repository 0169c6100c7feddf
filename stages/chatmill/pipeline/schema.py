"""The JSON schema of params.yaml, by which editors complete keys, and stages check the sections of all other stages.

`python -m chatmill.pipeline.schema`, in the top folder of the project, writes it from the signatures of the scripts and
the comments of params.yaml.
"""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from chatmill.pipeline.params_file import PARAMS_FILE, SCHEMA_FILE, THREADS
from chatmill.pipeline.processes import SOURCE_ROOT
from chatmill.pipeline.signatures import signature_of

TYPES = "chatmill/tokenizer/types"  # a module for each value of train_tokenizer.type, with its own section
_LINE = re.compile(r"( *)([\w-]+):[^#\n]*?(?:  +# (.*))?")


def make_schema() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for script in sorted(Path(SOURCE_ROOT).glob("*.py")):
        signature = signature_of(importlib.import_module(script.stem).main)
        section = signature.model.model_json_schema()
        definitions |= section.pop("$defs", {})
        if threads := section["properties"].pop(THREADS, None):
            section["required"].remove(THREADS)
            properties[THREADS] = threads
        if signature.foreach:
            section = {"type": "object", "additionalProperties": section, "x-foreach": True}
        properties[script.stem] = section
    tokenizer = properties["train_tokenizer"]["properties"]
    tokenizer["type"]["x-modules"] = TYPES
    for module in sorted(Path(SOURCE_ROOT, TYPES).glob("[!_]*.py")):
        settings = importlib.import_module(f"{TYPES.replace('/', '.')}.{module.stem}").Settings
        tokenizer[module.stem] = settings.model_json_schema()
    for path, comment in _comments().items():
        section = properties
        for key in path[:-1]:
            section = section.get(key, {}).get("properties", {})
        if path[-1] in section:
            section[path[-1]]["description"] = comment
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def schema_text() -> str:
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


def _comments() -> dict[tuple[str, ...], str]:
    """The comment at the end of each key's line in params.yaml, by the path of the key: two spaces are a level."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    for line in PARAMS_FILE.read_text(encoding="utf-8").splitlines():
        if match := _LINE.fullmatch(line):
            indent, key, comment = match.groups()
            path = [*path[: len(indent) // 2], key]
            if comment:
                found[tuple(path)] = comment
    return found


if __name__ == "__main__":
    sys.path.insert(0, SOURCE_ROOT)
    Path(SOURCE_ROOT, SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
