"""The parameters of a training run: the section train_model of params.yaml."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from chatmill.pipeline.params_file import NonNegativeInt, PositiveInt
from chatmill.pipeline.signatures import in_yaml

Precision = Literal["float32", "bfloat16"]  # training/hardware.py has their properties
Keep = Literal["last", "best"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = (  # of a source: a factor, or a share of the tokens; training/chains.py says what they mean
    Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)? ?%$", examples=["30%"])]
)
SourceWeights = dict[str, Weight]


def share_of(weight: Weight) -> float | None:
    """The share, from 0 to 1, that a weight stands for; None for a factor."""
    return float(weight.removesuffix("%")) / 100 if isinstance(weight, str) else None


class TrainParameters(BaseModel, extra="forbid", frozen=True):
    """What is trained, for how long, and on which hardware; params.yaml describes each parameter."""

    depth: PositiveInt
    context: PositiveInt  # tokens
    steps: PositiveInt | None = None
    epochs: Positive | None = None
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
    teacher_weight: Annotated[float, Field(ge=0, le=1)] = 0.7
    start: Literal["bigrams", "random"] = "bigrams"
    initial: Path | None = None
    embedding: Literal["table", "bytes"] = "table"
    tie_embeddings: bool = True
    head_alignment: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    bag_of_words: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    width: PositiveInt | None = None
    heads: PositiveInt | None = None
    learning_rate: Positive | None = None
    lora_rank: PositiveInt | None = None
    checkpoint_every: PositiveInt = 100  # steps
    source_weights: SourceWeights = {}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            values = f"train_model.steps = {in_yaml(self.steps)} and train_model.epochs = {in_yaml(self.epochs)}"
            raise ValueError(f"{values}: expected a number for one of them, and null for the other")
        if self.lora_rank is not None and self.initial is None:
            problem = "needs train_model.initial: a new model has no weights to keep"
            raise ValueError(f"train_model.lora_rank = {self.lora_rank} {problem}")
        if self.batch_size < self.context:
            raise ValueError(
                f"train_model.batch_size = {self.batch_size} is less than train_model.context = {self.context}"
            )
        if self.head_alignment and self.tie_embeddings:
            raise ValueError(f"train_model.head_alignment = {self.head_alignment} needs tie_embeddings: false")
        if (share := sum(share_of(weight) or 0 for weight in self.source_weights.values())) > 1 + 1e-9:
            raise ValueError(f"train_model.source_weights: the shares sum to {share:.0%}: expected at most 100%")
        return self
