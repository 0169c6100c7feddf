"""The weights that a run ends with: those of its last step, or of the step that was best on validation."""

import math
from typing import Any

from torch import Tensor

from chatmill.training.train_parameters import Keep
from chatmill.training.trainer import Trainer
from chatmill.training.validation import WeightedBatches, weighted_bits_per_byte


class KeptWeights:
    """Keeps one copy of the best weights so far, on the CPU of the main process; for `last`, none.

    Where the sources have weights, `validation` has the batches of each of them, on which the best are chosen.
    """

    def __init__(self, keep: Keep, validation: WeightedBatches = ()) -> None:
        self._keep, self._validation = keep, validation
        self.step, self.bits_per_byte = 0, math.inf
        self._weights: dict[str, Tensor] = {}

    def compare(self, trainer: Trainer, bits_per_byte: float | None) -> None:
        """Keep the trainer's weights if they have fewer bits per byte on validation than those kept.

        `bits_per_byte` are those of all sources together; None where nothing was measured.
        """
        if self._keep == "last" or bits_per_byte is None:
            return
        if self._validation:
            bits_per_byte = weighted_bits_per_byte(trainer, self._validation)
        if bits_per_byte is None or bits_per_byte >= self.bits_per_byte:
            return
        self.step, self.bits_per_byte = trainer.completed_steps, bits_per_byte
        for name, weight in trainer.model.state_dict().items():
            full = trainer.group.gather_full(weight)
            if full is None:
                continue
            if name in self._weights:
                self._weights[name].copy_(full)
            else:
                self._weights[name] = full.clone()

    def final(self, trainer: Trainer) -> dict[str, Tensor]:
        """The full weights to write, in the main process; where nothing was measured, those of the last step."""
        if self.step:
            return self._weights
        self.step = trainer.completed_steps
        weights: dict[str, Tensor] = trainer.group.gather_full(trainer.model.state_dict())
        return weights

    def state_dict(self) -> dict[str, Any]:
        """The state that `load_state_dict` restores."""
        return {"step": self.step, "bits_per_byte": self.bits_per_byte, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any], *, is_main_process: bool) -> None:
        """Restore the state of `state_dict`."""
        self.step, self.bits_per_byte = state["step"], state["bits_per_byte"]
        self._weights = {name: weight.clone() for name, weight in state["weights"].items()} if is_main_process else {}

    def describe(self) -> str:
        """The step whose weights were best, and how good they were."""
        place = "validation, weighted as the sources are at the end" if self._validation else "validation"
        return f"kept the weights of step {self.step:,}: {self.bits_per_byte:.4f} bits per byte on {place}"
