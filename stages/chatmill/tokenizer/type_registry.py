"""The types of tokenizers that can be trained, each a module of chatmill.tokenizer.types, and their parameters."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, cast

from pydantic import BaseModel, model_validator

from chatmill.conversation import CONTROL_TOKENS
from chatmill.pipeline.params_file import PositiveInt, section_errors, suggest
from chatmill.tokenizer import types
from chatmill.tokenizer.vocabulary.vocabulary import VOCAB_SIZE_MULTIPLE, Vocabulary


class NoSettings(BaseModel, extra="forbid"):
    """There are no settings."""


class TokenizerType(Protocol):
    """The attributes of a type's module."""

    Settings: type[BaseModel]  # its own section of params.yaml
    MINIMUM: int  # the fewest text tokens
    train: Callable[[Iterable[str], int, Any], Vocabulary]


class TokenizerParameters(BaseModel, extra="allow", frozen=True):
    """The section train_tokenizer of params.yaml; it also has a section for each type."""

    type: str
    vocab_size: PositiveInt
    special_tokens: list[str]
    max_bytes: PositiveInt | None = None

    @property
    def num_controls(self) -> int:
        return len(CONTROL_TOKENS) + len(self.special_tokens)

    @property
    def settings(self) -> BaseModel:
        return load_type(self.type).Settings.model_validate(self._section)

    @property
    def _section(self) -> dict[str, Any]:
        return (self.model_extra or {}).get(self.type) or {}

    @model_validator(mode="after")
    def _check_types(self) -> Self:
        names = type_names()
        if self.type not in names:
            raise ValueError(f"train_tokenizer.type = {self.type!r}{suggest(self.type, names)}")
        if unknown := sorted((self.model_extra or {}).keys() - set(names)):
            known = {*type(self).model_fields, *names}
            raise ValueError(f"unknown parameter train_tokenizer.{unknown[0]}{suggest(unknown[0], known)}")
        chosen = load_type(self.type)
        if errors := section_errors(f"train_tokenizer.{self.type}", self._section, chosen.Settings):
            raise ValueError("; ".join(errors))
        size = f"train_tokenizer.vocab_size = {self.vocab_size}"
        if self.vocab_size % VOCAB_SIZE_MULTIPLE:
            raise ValueError(f"{size}: expected a multiple of {VOCAB_SIZE_MULTIPLE}")
        least = -(-(chosen.MINIMUM + self.num_controls) // VOCAB_SIZE_MULTIPLE) * VOCAB_SIZE_MULTIPLE
        if self.vocab_size < least:
            raise ValueError(f"{size}: {self.type} needs at least {least}")
        return self


def type_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(types.__path__))


def load_type(name: str) -> TokenizerType:
    return cast(TokenizerType, importlib.import_module(f"{types.__name__}.{name}"))
