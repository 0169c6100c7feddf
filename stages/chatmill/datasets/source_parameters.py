"""The parameters of a dataset: an entry of the section prepare of params.yaml; data/README.md describes each."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from chatmill.datasets.formats.mapping import Columns, Roles, TableMapping
from chatmill.datasets.repair import RepairRules
from chatmill.datasets.split import SplitName
from chatmill.pipeline.params_file import Fraction, NonNegativeInt, PositiveInt


class SourceParameters(BaseModel, extra="forbid", frozen=True):
    """Where a dataset is, what it looks like, and how much of it is read."""

    path: Path  # a file or a folder
    format: str
    files: str | list[str] = "*"  # patterns of the files in a folder
    columns: Columns | None = None
    roles: Roles | None = None
    first: Literal["user", "assistant"] | None = None
    turn_separator: Annotated[str, Field(min_length=1)] | None = None
    languages: list[str] | None = None
    assistant_first: Literal["drop", "keep"] = "drop"
    same_role: Literal["join", "reject"] = "join"
    join_with: str = "\n\n"
    mask_history: bool = False
    limit: PositiveInt | None = None
    seed: NonNegativeInt = 0
    max_reject_rate: Fraction = 0.05  # of 20 published sets read as they should be, none had more than 0.016
    side: SplitName | None = None
    near_duplicates: Literal["across", "within", "off"] | None = None  # mix reads it

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name in ("roles", "first", "turn_separator", "languages"):
            if getattr(self, name) and self.columns is None:
                raise ValueError(f"{name} needs columns, which the format table has")
        if self.languages is not None and self.columns is not None and self.columns.language is None:
            raise ValueError("languages needs columns.language")
        return self

    @property
    def patterns(self) -> list[str]:
        """The patterns of the files in a folder."""
        return [self.files] if isinstance(self.files, str) else self.files

    @property
    def mapping(self) -> TableMapping | None:
        """The mapping of columns, if there is one."""
        if self.columns is None:
            return None
        return TableMapping(
            columns=self.columns,
            roles=self.roles or {},
            first=self.first,
            turn_separator=self.turn_separator,
            languages=None if self.languages is None else tuple(self.languages),
        )

    @property
    def rules(self) -> RepairRules:
        """How conversations are repaired."""
        return RepairRules(self.assistant_first, self.same_role, self.join_with)
