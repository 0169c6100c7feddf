"""params.yaml: how it is read, and how all of it is checked before a stage begins.

A section is what the `main` of the script of its name takes by keyword: the annotations there say what is allowed. Of
other scripts only that signature is read, so that checking them imports none of what they work with.
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
from chatmill.pipeline.signatures import Signature, read_signature

Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]

PARAMS_FILE = Path("params.yaml")
Params = dict[str, Any]
_REMOVED = {  # parameters as earlier versions had them, and what to do instead
    key: f"is no longer a parameter: DVC tracks what lies in data/raw/external/{folder}: delete the line"
    for key, folder in {
        "train_model.initial_sha256": "initial",
        "train_tokenizer.pretrained.sha256": "pretrained",
        "train_soft_tokenizer.other_tokenizer_sha256": "other_tokenizer",
    }.items()
} | {"evaluate.compare_tokenizers": "is a list of files in data/raw/external/compare_tokenizers, without their sums"}


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number, as DVC reads it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def read_params(file: Path = PARAMS_FILE) -> Params:
    """The parameters of all stages. Raises ValueError where there are none."""
    if not file.exists():
        raise ValueError(f"no {file} in {Path.cwd()}: run stages from the top folder of the project")
    try:
        params = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(params, dict):
        raise ValueError(f"{file}: expected one section per stage")
    return params


def section_of(params: Params, name: str, signature: Signature, instance: str) -> Params:
    """The section of a stage, or that of one `instance` where it has several. Raises ValueError where there is none."""
    path = f"{name}.{instance}" if signature.foreach else name
    for found, section in _sections(params, name, signature):
        if found == path:
            return section
    raise ValueError(f"{PARAMS_FILE}: no section {path}")


def check_params(params: Params, scripts: Path) -> None:
    """Raise ValueError, with all that is wrong, unless every section is what the script of its name takes.

    `scripts` is their folder. What was found right is remembered until the file or the code changes.
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
    """Leave no module of the package behind: what a run depends on is told by the modules it has loaded."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if name.startswith("chatmill."):
                del sys.modules[name]


def find_errors(params: Params, signatures: Mapping[str, Signature]) -> Iterator[str]:
    """What is wrong with the sections, one sentence each; a section that is missing is missed by its own stage."""
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
    """What is wrong with a section, one sentence for each key, with its path."""
    try:
        model.model_validate(section)
    except ValidationError as error:
        problems: dict[tuple[str, ...], list[ErrorDetails]] = {}
        for problem in error.errors():
            problems.setdefault(_key(problem["loc"], section), []).append(problem)
        for key, found in problems.items():
            yield _explain(".".join((path, *key)), found, model.model_fields if len(key) == 1 else ())


def _key(location: Sequence[str | int], section: Any) -> tuple[str, ...]:
    """The keys of a place in a section, and the one that it lacks, without what pydantic adds for parts of a type."""
    keys: list[str] = []
    for part in location:
        if not isinstance(section, (dict, list)):
            break
        keys.append(str(part))
        found = dict(enumerate(section)) if isinstance(section, list) else section
        section = found.get(part)
    return tuple(keys)


def _explain(key: str, problems: Sequence[ErrorDetails], known: Collection[str]) -> str:
    """One sentence for what is wrong with a key; a value that may be of several types has a problem for each."""
    problem = problems[0]
    if key in _REMOVED:
        return f"{key} {_REMOVED[key]}"
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter {key}{suggest(key.rpartition('.')[2], known)}"
    if problem["type"] == "missing":
        return f"missing parameter {key}"
    messages = [(each["msg"][:1].lower() + each["msg"][1:]).removeprefix("value error, ") for each in problems]
    message = ", or ".join(dict.fromkeys(messages))
    return f"{key} = {problem['input']!r}: {message}" if problem["loc"] else message


def _sections(params: Params, name: str, signature: Signature) -> Iterator[tuple[str, Params]]:
    """Each section of a stage, and its path. What its command line names is no parameter. Raises ValueError."""
    whole = params.get(name) or {}
    sections = {name: whole}
    if signature.foreach and isinstance(whole, dict):
        sections = {f"{name}.{key}": section or {} for key, section in whole.items()}
    for path, section in sections.items():
        if not isinstance(section, dict):
            raise ValueError(f"{PARAMS_FILE}: {path}: expected keys and values")
        yield path, {key: value for key, value in section.items() if key not in signature.files}


def suggest(name: str, known: Collection[str]) -> str:
    """What to say after a name that is none of the known ones; nothing where there are none."""
    near = difflib.get_close_matches(name, known, n=1)
    choices = f"expected one of {', '.join(sorted(known))}" if known else ""
    return "".join(f": {part}" for part in (f"did you mean {near[0]}?" if near else "", choices) if part)


def check_external(path: Path, folder: Path, parameter: str) -> None:
    """Raise ValueError, which tells how to bring it there, unless a path lies in the folder that DVC tracks."""
    if path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve():
        return
    place, copy = folder / path.name, "cp -r" if path.is_dir() else "cp"
    raise ValueError(
        f"{parameter} = {str(path)!r}: DVC tracks what lies in {folder} alone: `{copy} {path} {place}` and, where it "
        f"is too large for git, `dvc add {place}` (or `dvc import-url URL {place}`); then name {place}"
    )
