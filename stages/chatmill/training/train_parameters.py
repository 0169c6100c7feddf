"""The parameters of a training run: the section train_model of params.yaml."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, model_validator

from chatmill.pipeline.expected_values import in_yaml
from chatmill.pipeline.params_file import NonNegativeInt, PositiveInt

Precision = Literal["float32", "bfloat16"]  # training/precision.py has their properties
Keep = Literal["last", "best"]


class TrainParameters(BaseModel, extra="forbid", frozen=True):
    """What is trained, for how long, and on which hardware; params.yaml describes each parameter."""

    depth: PositiveInt
    context: PositiveInt  # tokens
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None
    batch_size: PositiveInt  # tokens a step
    keep: Keep = "last"
    prompt_loss_weight: Annotated[float, Field(ge=0, le=1)]
    seed: NonNegativeInt
    threads: PositiveInt
    precision: Literal["auto", Precision]
    compile: Literal["auto"] | bool
    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: Literal["auto"] | PositiveInt = 1
    shard: bool = False
    initial: Path | None = None
    embedding: Literal["table", "bytes"] = "table"
    tie_embeddings: bool = True
    head_alignment: NonNegativeFloat = 0.0
    head: Literal["table", "bytes"] = "table"
    chunking: Literal["none", "learned", "autoencoder", "fixed"] = "none"
    tokens_per_chunk: Annotated[float, Field(gt=1)] = 4.0
    width: PositiveInt | None = None
    heads: PositiveInt | None = None
    learning_rate: PositiveFloat = 0.012
    checkpoint_every: PositiveInt = 100  # steps

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            values = f"train_model.steps = {in_yaml(self.steps)} and train_model.epochs = {in_yaml(self.epochs)}"
            raise ValueError(f"{values}: expected a number for one of them, and null for the other")
        if self.batch_size < self.context:
            raise ValueError(
                f"train_model.batch_size = {self.batch_size} is less than train_model.context = {self.context}"
            )
        if self.head_alignment and (self.tie_embeddings or self.head == "bytes"):
            raise ValueError(
                f"train_model.head_alignment = {self.head_alignment} needs tie_embeddings: false and head: table"
            )
        if self.head == "bytes" and not self.tie_embeddings:
            raise ValueError("train_model.head = bytes has no rows of its own to untie: set tie_embeddings: true")
        return self
