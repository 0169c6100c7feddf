"""The parameters of a soft tokenizer: the section train_soft_tokenizer of params.yaml."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeFloat

from chatmill.pipeline.params_file import NonNegativeInt, PositiveInt


class SoftTokenizerParameters(BaseModel, extra="forbid", frozen=True):
    """The network, its training and its evaluation; params.yaml describes each parameter."""

    width: Annotated[int, Field(gt=0, multiple_of=32)]
    layers: PositiveInt
    features: PositiveInt
    longest: PositiveInt  # bytes of a token
    steps: PositiveInt
    contrast: NonNegativeFloat
    held_out: Annotated[float, Field(gt=0, lt=1)]
    conversations: PositiveInt
    noise: bool
    tune: NonNegativeInt  # steps
    other_tokenizer: Path | None
    seed: NonNegativeInt
    threads: PositiveInt
