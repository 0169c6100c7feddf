"""Datasets of the Hugging Face hub, with the extra `hf`. The raw file is YAML that names the dataset:

dataset: some-team/some-chats
revision: 0123456789abcdef0123456789abcdef01234567   # a commit, so that each run reads the same rows
split: train
format: messages                                     # the format of its rows, or a mapping: columns, roles, first
config: default                                      # optional
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from chatmill.datasets.formats.example import RawRow
from chatmill.datasets.formats.mapping import Columns, Roles, TableMapping


class Descriptor(BaseModel):
    """The dataset, its revision and its split."""

    model_config = ConfigDict(extra="forbid")

    dataset: str
    revision: str
    split: str
    format: str = "table"
    config: str | None = None
    columns: Columns | None = None
    roles: Roles = {}
    first: Literal["user", "assistant"] | None = None

    @property
    def mapping(self) -> TableMapping | None:
        """The mapping of its columns, if it has one."""
        return TableMapping(columns=self.columns, roles=self.roles, first=self.first) if self.columns else None


def read_descriptor(file: Path) -> Descriptor:
    """The content of a descriptor file. Raises ValueError with file and key."""
    try:
        return Descriptor.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"{file}: {'.'.join(map(str, problem['loc']))}: {problem['msg'].lower()}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: not YAML: {error}") from error


def rows(descriptor: Descriptor) -> Iterator[RawRow]:
    """The rows of the dataset, streamed. Raises ValueError where the extra is not installed."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise ValueError("format hub: needs an extra: pip install 'chatmill[hf]'") from error
    chosen: dict[str, Any] = {"split": descriptor.split, "revision": descriptor.revision, "streaming": True}
    dataset = load_dataset(descriptor.dataset, descriptor.config, **chosen)
    for number, row in enumerate(dataset, start=1):
        yield f"{descriptor.dataset}/{descriptor.split}:{number}", dict(row)
