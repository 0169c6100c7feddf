"""Reads params.yaml, and checks all of it before a stage starts.

A section holds the keyword-only parameters of the `main` of the script with its name; `threads` stands above them all,
since the processor is that of all stages. A stage checks its own section
by this signature, and all others by a JSON schema, so that it imports no code of other stages.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterator
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from chatmill.pipeline.processes import SOURCE_ROOT
from chatmill.pipeline.signatures import Schema, Signature, alternatives, describe, in_yaml

Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]

PARAMS_FILE = Path("params.yaml")
SCHEMA_FILE = Path("params.schema.json")  # in the folder of the scripts
THREADS = "threads"
Params = dict[str, Any]
_PLAIN_NAME = re.compile(r"[\w-]{1,100}")


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number, as DVC reads it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def read_params(file: Path = PARAMS_FILE) -> Params:
    """The parameters of all stages. Raises ValueError where the file is missing or unreadable."""
    if not file.exists():
        raise ValueError(f"{file} not found in {Path.cwd()}: call this in the top folder of the project")
    return parse_params(file.read_bytes(), str(file))


def parse_params(content: bytes, name: str) -> Params:
    """The parameters in the content of a file of this name. Raises ValueError where it is unreadable."""
    try:
        params = yaml.load(content.decode("utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(params, dict):
        raise ValueError(f"{name}: expected one section for each stage, got {in_yaml(params)}")
    return params


def sections_of(params: Params, name: str, signature: Signature) -> Params:
    """The section of a stage, or those of the entries of a foreach stage, by path: each with the threads it takes."""
    section = params.get(name) or {}
    sections = {f"{name}.{key}": one or {} for key, one in section.items()} if signature.foreach else {name: section}
    if THREADS not in signature.model.model_fields:
        return sections
    return {path: {**one, THREADS: params[THREADS]} for path, one in sections.items()}


def check_params(params: Params, own: str, signature: Signature) -> None:
    """Raise ValueError unless the sections of all stages are as the schema says, and the stage's own fits together.

    It lists all errors against the schema, or else those that the validators of the stage find.
    """
    schema = json.loads((Path(SOURCE_ROOT) / SCHEMA_FILE).read_text(encoding="utf-8"))
    for name in (own, *signature.other_sections):  # of a script that the schema lacks anything is right
        schema["properties"].setdefault(name, {})
    errors = list(find_errors({own: None} | params, schema))
    if THREADS in signature.model.model_fields and THREADS not in params:
        errors.append(f"missing parameter {THREADS}: expected an integer above 0")
    if not errors:
        for path, section in sections_of(params, own, signature).items():
            errors += section_errors(path, section, signature.model)
    if errors:
        raise ValueError("; ".join(f"{PARAMS_FILE}: {error}" for error in dict.fromkeys(errors)))


def find_errors(params: Params, schema: Schema) -> Iterator[str]:
    """The errors in the sections of all stages, one line each; a missing section is none."""
    known = schema["properties"]
    for unknown in sorted(params.keys() - known.keys(), key=str):
        yield f"unknown section {unknown}{suggest(str(unknown), known)}"
    for name in (name for name in params if name in known):
        if known[name].get("x-foreach") and isinstance(params[name], dict):
            yield from _unusable_names(name, params[name])
        yield from _value_errors(name, {} if params[name] is None else params[name], known[name], schema)


def _value_errors(path: str, value: Any, schema: Schema, root: Schema) -> Iterator[str]:
    options = alternatives(schema, root)
    fitting = [option for option in options if _has_type(value, option)]
    if not fitting or not any(_is_in_range(value, option) for option in fitting):
        modules = next((option["x-modules"] for option in options if "x-modules" in option), "")
        expected = ", ".join(_modules(modules)) if modules else describe(options, root)
        yield f"{path}: expected {expected}, got {in_yaml(value)}"
    elif isinstance(value, dict):
        properties, others = fitting[0].get("properties", {}), fitting[0].get("additionalProperties", True)
        for missing in sorted(set(fitting[0].get("required", ())) - value.keys()):
            expected = describe(alternatives(properties[missing], root), root)
            yield f"missing parameter {path}.{missing}: expected {expected}"
        for key, part in value.items():
            if key in properties:
                yield from _value_errors(f"{path}.{key}", part, properties[key], root)
            elif others is False and key == THREADS:
                yield f"unknown parameter {path}.{key}: it stands once, above the sections"
            elif others is False:
                yield f"unknown parameter {path}.{key}{suggest(str(key), properties)}"
            elif isinstance(others, dict):
                is_section = any(_has_type({}, option) for option in alternatives(others, root))
                yield from _value_errors(f"{path}.{key}", {} if part is None and is_section else part, others, root)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _value_errors(f"{path}.{number}", part, fitting[0].get("items", {}), root)


def _has_type(value: Any, schema: Schema) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str | Path),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "number": is_number,
        "integer": is_number and isfinite(value) and value == int(value),
    }
    return fits.get(schema.get("type", ""), True)


def _modules(folder: str) -> list[str]:
    return sorted(file.stem for file in Path(SOURCE_ROOT, folder).glob("[!_]*.py"))


def _is_in_range(value: Any, schema: Schema) -> bool:
    if isinstance(value, str):
        is_known = value in _modules(schema["x-modules"]) if "x-modules" in schema else True
        is_short = len(value) <= schema.get("maxLength", len(value))
        return is_known and is_short and _is_listed(value, schema) and bool(re.search(schema.get("pattern", ""), value))
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    if isinstance(value, int | float):
        return bool(
            isfinite(value)
            and schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and ("multipleOf" not in schema or value % schema["multipleOf"] == 0)
            and _is_listed(value, schema)
        )
    return True


def _is_listed(value: Any, schema: Schema) -> bool:
    return value in schema.get("enum", [schema.get("const", value)])


def section_errors(path: str, section: Any, model: type[BaseModel]) -> list[str]:
    """What the schema of a model finds wrong with a section; where that is nothing, what its validators do."""
    schema = model.model_json_schema()
    errors = list(_value_errors(path, section, schema, schema))
    try:
        if not errors:
            model.model_validate(section)
    except ValidationError as error:
        errors = [_validator_error(path, problem) for problem in error.errors()]
    return errors


def _validator_error(path: str, problem: ErrorDetails) -> str:
    """The line of an error; that of a validator names its parameter itself if it concerns more than one."""
    message = problem["msg"].removeprefix("Value error, ")
    name = ".".join(map(str, (path, *problem["loc"])))
    return f"{name} = {in_yaml(problem['input']):.200}: {message}" if problem["loc"] else message


def _unusable_names(name: str, content: Params) -> Iterator[str]:
    """Of entries whose names are not plain: they are in commands for the shell and in names of files."""
    for key in content:
        if not (isinstance(key, str) and _PLAIN_NAME.fullmatch(key)):
            yield (
                f"{name}: unusable name {in_yaml(key)}: expected up to 100 letters, digits, _ and -, in quotes if it "
                "is a number, true, false or null"
            )


def suggest(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: a known name like it, and all known ones; empty without any."""
    near = difflib.get_close_matches(name, known, n=1)
    choices = f": expected one of {', '.join(sorted(known))}" if known else ""
    return (f" (did you mean {near[0]}?)" if near else "") + choices


def check_external(path: Path, folder: Path, parameter: str) -> None:
    """Raise ValueError, with the commands to copy it there, unless a path lies in the folder that DVC tracks."""
    if path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve():
        return
    place, copy = folder / path.name, "cp -r" if path.is_dir() else "cp"
    raise ValueError(
        f"{parameter}: expected a path in {folder}, which DVC tracks, got {in_yaml(str(path))}: call "
        f"`{copy} {path} {place}` (or `dvc import-url URL {place}`), for files too large for git also "
        f"`dvc add {place}`; then set {parameter} to {place}"
    )
