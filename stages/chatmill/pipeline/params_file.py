"""Reads params.yaml, and checks all of it before a stage starts.

A section holds the keyword-only parameters of the `main` of the script with its name; their annotations say which
values are allowed. Of the other scripts only this signature is read, so that the check does not import their libraries.
"""

import difflib
import hashlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.signatures import Signature, expected_value, in_yaml, read_signature

Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]

PARAMS_FILE = Path("params.yaml")
Params = dict[str, Any]
_PLAIN_NAME = re.compile(r"[\w-]{1,100}")
_REMOVED = {  # parameters of earlier versions, and what to do instead
    key: f"{key} was removed, since DVC tracks the files in data/raw/external/{folder}: delete the line"
    for key, folder in {
        "train_model.initial_sha256": "initial",
        "train_tokenizer.pretrained.sha256": "pretrained",
        "train_soft_tokenizer.other_tokenizer_sha256": "other_tokenizer",
    }.items()
}


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
        raise ValueError(f"{file} not found in {Path.cwd()}: run stages from the top folder of the project")
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


def section_of(params: Params, name: str, signature: Signature, instance: str) -> Params:
    """The section of a stage, or of one `instance` of a foreach stage. Raises ValueError where it is missing."""
    path = f"{name}.{instance}" if signature.foreach else name
    for found, section in _sections(params, name, signature):
        if found == path:
            return section
    raise ValueError(f"{PARAMS_FILE}: missing section {path}")


def check_params(params: Params, scripts: Path) -> None:
    """Raise ValueError, which lists all errors, unless every section fits the script of its name.

    `scripts` is the folder of the scripts. A passed check is not repeated until the parameters or the code change.
    """
    files = sorted(scripts.rglob("*.py"))
    digest = hashlib.sha256(repr(params).encode())
    for file in files:
        digest.update(file.read_bytes())
    checked = Path(SCRATCH, "checked-params")
    if checked.exists() and checked.read_text(encoding="utf-8") == digest.hexdigest():
        return
    with _temporary_imports():
        signatures = {file.stem: read_signature(file) for file in files if file.parent == scripts}
        errors = list(find_errors(params, signatures))
    if errors:
        raise ValueError("; ".join(f"{PARAMS_FILE}: {error}" for error in dict.fromkeys(errors)))
    checked.parent.mkdir(parents=True, exist_ok=True)
    checked.write_text(digest.hexdigest(), encoding="utf-8")


@contextmanager
def _temporary_imports() -> Iterator[None]:
    """Unload the modules of the package that the block imports, so that a run holds only modules it depends on."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if name.startswith("chatmill."):
                del sys.modules[name]


def find_errors(params: Params, signatures: Mapping[str, Signature]) -> Iterator[str]:
    """The errors in the sections, one line each; a missing section is reported by its own stage."""
    known = {*signatures, *(name for signature in signatures.values() for name in signature.other_sections)}
    for unknown in sorted(params.keys() - known, key=str):
        yield f"unknown section {unknown}{suggest(str(unknown), known)}"
    for name in (name for name in params if name in signatures):
        try:
            for path, section in _sections(params, name, signatures[name]):
                yield from section_errors(path, section, signatures[name].model)
        except ValueError as error:
            yield str(error).removeprefix(f"{PARAMS_FILE}: ")


def section_errors(path: str, section: Params, model: type[BaseModel]) -> Iterator[str]:
    """The errors in a section, one line for each key, with its path."""
    try:
        model.model_validate(section)
    except ValidationError as error:
        problems: dict[tuple[str, ...], list[ErrorDetails]] = {}
        for problem in error.errors():
            problems.setdefault(_key(problem["loc"], section), []).append(problem)
        for key, found in problems.items():  # one error for each type that a value may have
            name = ".".join((path, *key))
            if found[0]["type"] == "extra_forbidden":
                known = model.model_fields if len(key) == 1 else ()
                removed = _replaced_repeat(found[0]["input"]) if name == "mix.repeat" else _REMOVED.get(name)
                yield removed or f"unknown parameter {name}{suggest(key[-1], known)}"
            else:
                yield _error_line(name, found[0], expected_value(model, key))


def _replaced_repeat(copies: Any) -> str:
    """What replaces a value of `mix.repeat`, the copies in train of each conversation of a source."""
    weights = {source: number for source, number in copies.items() if number != 1} if isinstance(copies, dict) else {}
    return f"mix.repeat is no longer a parameter: use train_model.source_weights: {in_yaml(weights)}"


def _key(location: Sequence[str | int], section: Any) -> tuple[str, ...]:
    """The keys of a location in a section, up to one that is missing, without the type names that pydantic adds."""
    keys: list[str] = []
    for part in location:
        if not isinstance(section, (dict, list)) or (isinstance(section, list) and isinstance(part, str)):
            break
        keys.append(str(part))
        found = dict(enumerate(section)) if isinstance(section, list) else section
        section = found.get(part)
    return tuple(keys)


def _error_line(name: str, error: ErrorDetails, expected: str) -> str:
    """One line for an error; that of a validator names its parameter itself if it concerns more than one."""
    if error["type"] == "missing":
        return f"missing parameter {name}: expected {expected}"
    if error["type"] == "value_error":
        message = error["msg"].removeprefix("Value error, ")
        return f"{name} = {in_yaml(error['input'])}: {message}" if error["loc"] else message
    return f"{name}: expected {expected}, got {in_yaml(error['input'])}"


def _sections(params: Params, name: str, signature: Signature) -> Iterator[tuple[str, Params]]:
    """The path and the parameters of each section of a stage.

    Raises ValueError where a section is not a mapping, and for an entry of a `foreach` stage whose name is not plain:
    it is in commands for the shell and in names of files.
    """
    content = params.get(name) or {}
    sections = {name: content}
    if signature.foreach and isinstance(content, dict):
        for key in content:
            if not (isinstance(key, str) and _PLAIN_NAME.fullmatch(key)):
                raise ValueError(
                    f"{PARAMS_FILE}: {name}: unusable name {in_yaml(key)}: expected up to 100 letters, digits, _ "
                    "and -, in quotes if it is a number, true, false or null"
                )
        sections = {f"{name}.{key}": section or {} for key, section in content.items()}
    for path, section in sections.items():
        if not isinstance(section, dict):
            raise ValueError(f"{PARAMS_FILE}: {path}: expected keys and values, got {in_yaml(section)}")
        yield path, section


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
