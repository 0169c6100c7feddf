"""What a parameter accepts, in words: `an integer above 0`."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

_NOUNS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}
_NOUNS |= {"null": "null", "object": "keys and values"}
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}

Schema = dict[str, Any]


def expected_value(model: type[BaseModel], keys: Sequence[str]) -> str:
    """The values that a model accepts under a path of keys; an index of a list is a key, too."""
    root = model.model_json_schema()
    schemas = _alternatives(root, root)
    for key in keys:
        schemas = [found for schema in schemas if (part := _part(schema, key)) for found in _alternatives(part, root)]
    return ", or ".join(dict.fromkeys(_describe(schema, root) for schema in schemas))


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of which one must hold, with references resolved."""
    if "$ref" in schema:
        return _alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    return [found for option in schema.get("anyOf", ()) for found in _alternatives(option, root)] or [schema]


def _part(schema: Schema, key: str) -> Schema | None:
    part = schema.get("properties", {}).get(key) or schema.get("items") or schema.get("additionalProperties")
    return part if isinstance(part, dict) else None


def _describe(schema: Schema, root: Schema) -> str:
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    if schema.get("type") == "array":
        entries = ", or ".join(_describe(entry, root) for entry in _alternatives(schema.get("items", {}), root))
        return f"a list, each entry {entries}"
    if schema.get("examples"):
        return f"{_NOUNS[schema['type']]} such as {in_yaml(schema['examples'][0])}"
    noun = "a path" if schema.get("format") == "path" else _NOUNS.get(schema.get("type", ""), "any value")
    if "multipleOf" in schema:
        noun = f"a multiple of {schema['multipleOf']}"
    bounds = " and ".join(f"{words} {schema[bound]}" for bound, words in _BOUNDS.items() if bound in schema)
    return f"{noun} of {bounds}" if bounds.startswith("at ") else f"{noun} {bounds}".rstrip()


def in_yaml(value: Any) -> str:
    """A value as it can stand in params.yaml."""
    return json.dumps(value, ensure_ascii=False, default=str)
