"""Reads a YAML file that people write by hand into a pydantic model, with errors of one line that name the place."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

MAX_BYTES = 1_000_000
MAX_NESTING = 60  # lists and maps inside each other
MAX_ENTRIES = 300_000  # with those of aliases
_REMEDIES = {
    "missing": ": add it",
    "too_short": ": add some",
    "extra_forbidden": ": remove it, or correct its name",
}


class StrictModel(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=BaseModel)


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]  # the class is chosen at run time
    """Reads every scalar as text, and refuses a key that occurs twice in a map."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {key.value!r} occurs twice: rename one")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        content: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return content


def read_yaml(file: Path, model: type[_Model]) -> _Model:
    """The content of a file. Raises ValueError with file, place and remedy."""
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file}: over {MAX_BYTES:,} bytes: split it into several files, each a source of its own")
    try:
        return model.model_validate(_load(content))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{file}: {place}: {first['msg']}{_REMEDIES.get(first['type'], '')}") from error


def _load(content: bytes) -> Any:
    """The content, with all scalars as text. Raises YAMLError if it is too deep or, with its aliases, too large."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):  # before it is loaded, which needs the stack
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        _check_depth(depth)
    loaded = yaml.load(content, Loader=_Loader)
    entries, _ = _extent(loaded, 1, {})
    if entries > MAX_ENTRIES:
        raise yaml.YAMLError(f"more than {MAX_ENTRIES:,} entries, those of aliases counted again: remove aliases")
    return loaded


def _extent(part: Any, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """The entries and levels of a part that is in this level, with those of its aliases, which are the same objects."""
    if not isinstance(part, list | dict):
        return 1, 0
    _check_depth(depth)
    if id(part) not in known:
        inner = [_extent(child, depth + 1, known) for child in (part.values() if isinstance(part, dict) else part)]
        known[id(part)] = 1 + sum(size for size, _ in inner), 1 + max((levels for _, levels in inner), default=0)
    _check_depth(depth + known[id(part)][1] - 1)
    return known[id(part)]


def _check_depth(depth: int) -> None:
    if depth > MAX_NESTING:
        raise yaml.YAMLError(f"nested too deeply, more than {MAX_NESTING} levels: flatten it")
