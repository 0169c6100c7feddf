"""How long a run is, in steps and in epochs, and what is logged about it before it begins.

An epoch is as many tokens as there are in the rows of the context's length in which each conversation stands once,
padding included. A run that begins with shorter rows reads the short conversations more often than the others.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from chatmill.model.chat_model import ChatModel
from chatmill.training.distributed import DeviceKind

FEWEST_EPOCHS, MOST_EPOCHS = 0.5, 20  # a run outside of these is warned of


@dataclass(frozen=True, slots=True)
class RunLength:
    """The steps of a run, the tokens of all of them, and those of an epoch."""

    steps: int
    tokens: int
    tokens_per_epoch: int

    @property
    def epochs(self) -> float:
        """How often the training set is read."""
        return self.tokens / self.tokens_per_epoch


def count_steps(epochs: float, tokens_per_epoch: int, tokens_per_step: float) -> int:
    """The steps that so many epochs take, at least one."""
    return max(1, round(epochs * tokens_per_epoch / tokens_per_step))


def describe_run(length: RunLength, model: ChatModel, memory: int, device: DeviceKind) -> Iterator[str]:
    """Lines about the size of a run, which needs so many bytes of memory in each process."""
    num_parameters = sum(weight.numel() for weight in model.parameters())
    place = "of the GPU" if device == "cuda" else "besides PyTorch itself"
    yield (
        f"{num_parameters:,} parameters, {length.tokens:,} tokens in {length.steps:,} steps: "
        f"{length.epochs:,.2f} epochs of {length.tokens_per_epoch:,} tokens; "
        f"about {memory / 1e9:.1f} GB of memory {place}"
    )
    if warning := length_warning(length):
        yield f"warning: {warning}"


def length_warning(length: RunLength) -> str | None:
    """What is wrong with a run that is very short or long for its data, and how long it should be."""
    steps_per_token = length.steps / length.tokens
    if length.epochs < FEWEST_EPOCHS:
        steps = math.ceil(FEWEST_EPOCHS * length.tokens_per_epoch * steps_per_token)
        return (
            f"{length.epochs:.2g} epochs leave most of the training set unread: "
            f"train_model.steps = {steps:,} are {FEWEST_EPOCHS} epochs"
        )
    if length.epochs > MOST_EPOCHS:
        steps = max(1, math.floor(MOST_EPOCHS * length.tokens_per_epoch * steps_per_token))
        return (
            f"after {length.epochs:,.1f} epochs a model may know its training set by heart: "
            f"train_model.steps = {steps:,} are {MOST_EPOCHS} epochs; train_model.keep = best keeps the best weights"
        )
    return None
