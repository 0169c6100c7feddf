"""The parameters of a stage: what they accept in words, and the files on its command line."""

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

# What a parameter accepts, in words: `an integer above 0`.

_NOUNS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}
_NOUNS |= {"null": "null", "object": "keys and values"}
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
_BOUNDS |= {"minItems": "at least", "maxItems": "at most", "minLength": "at least", "maxLength": "at most"}

Schema = dict[str, Any]


def describe(schemas: Sequence[Schema], root: Schema) -> str:
    """What these schemas accept, of which one must hold."""
    return ", or ".join(dict.fromkeys(_describe(schema, root) for schema in schemas))


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of which one must hold, with references to the root's definitions resolved."""
    if "$ref" in schema:
        return alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    return [found for option in schema.get("anyOf", ()) for found in alternatives(option, root)] or [schema]


def _describe(schema: Schema, root: Schema) -> str:
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    bounds = " and ".join(f"{words} {schema[bound]}" for bound, words in _BOUNDS.items() if bound in schema)
    if schema.get("type") == "array":
        entries = ", or ".join(_describe(entry, root) for entry in alternatives(schema.get("items", {}), root))
        return f"a list{f' of {bounds}' if bounds else ''}, each entry {entries}"
    if schema.get("examples"):
        return f"{_NOUNS[schema['type']]} such as {in_yaml(schema['examples'][0])}"
    noun = "a path" if schema.get("format") == "path" else _NOUNS.get(schema.get("type", ""), "any value")
    if "multipleOf" in schema:
        noun = f"a multiple of {schema['multipleOf']}"
    unit = " characters" if schema.get("type") == "string" and bounds else ""
    return f"{noun} of {bounds}{unit}" if bounds.startswith("at ") else f"{noun} {bounds}".rstrip()


def in_yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# The parameters of a stage script: files on its command line, and a section of params.yaml.

Output = Annotated[Path, "output"]
GrowingOutput = Annotated[Path, "output", "grows"]
EntryOutput = Annotated[Path, "output", "entry"]  # its stem is the entry of a section that has a stage for each
Section = Annotated[dict[str, Any], "section"]
InitialModel = Annotated[Path | None, "key of", "train_model"]
MODEL_KEYWORD = "parameters"


@dataclass(frozen=True)
class Signature:
    files: dict[str, bool]  # whether each is an output, in the order of the command line
    growing: tuple[str, ...]  # outputs that can be read while they are written
    other_sections: tuple[str, ...]  # sections that it reads completely, besides its own
    other_keys: dict[str, str]  # the section of each parameter that is another stage's
    model: type[BaseModel]  # of its own section
    takes_model: bool  # whether `main` takes the model instead of its single keys
    foreach: str  # the file of type EntryOutput, if any


def signature_of(main: Callable[..., None]) -> Signature:
    parameters = inspect.signature(main).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    files = {p.name: _is(p.annotation, "output") for p in positional}
    growing = tuple(p.name for p in positional if _is(p.annotation, "grows"))
    foreach = next((p.name for p in positional if _is(p.annotation, "entry")), "")
    keywords = [p for p in parameters if p.name not in files]
    others = tuple(p.name for p in keywords if _is(p.annotation, "section"))
    keys = {p.name: get_args(p.annotation)[2] for p in keywords if _is(p.annotation, "key of")}
    given = next((p.annotation for p in keywords if p.name == MODEL_KEYWORD), None)
    fields = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in keywords}
    own: dict[str, Any] = {name: field for name, field in fields.items() if name not in others and name not in keys}
    model = given or create_model("Section", __config__=ConfigDict(extra="forbid"), **own)
    return Signature(files, growing, others, keys, model, given is not None, foreach)


def _is(annotation: Any, marker: str) -> bool:
    return get_origin(annotation) is Annotated and marker in get_args(annotation)


# The command line of a stage: its files, as positional arguments or, if there are many, as named options.

MAX_POSITIONAL = 3  # files; more are named, as positions are easily confused


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: see --help")


def parse_files(
    main: Callable[..., None], signature: Signature, name: str, arguments: Sequence[str]
) -> dict[str, Path]:
    """The path of each file that `main` takes. Raises ValueError where one is missing or unknown."""
    parser = _Parser(prog=name, description=inspect.getdoc(main), allow_abbrev=False)
    positional = len(signature.files) <= MAX_POSITIONAL
    for file, is_output in signature.files.items():
        option, metavar = f"--{file.replace('_', '-')}", file.upper()
        purpose = "output file or folder" if is_output else "input file or folder"
        if positional:
            parser.add_argument(file, metavar=metavar, type=Path, help=purpose)
        else:
            parser.add_argument(option, dest=file, metavar=metavar, type=Path, required=True, help=purpose)
    return vars(parser.parse_args(arguments))
