"""The weights that a run ends with: those of its last step, or of the step that was best on validation."""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from chatmill.training.train_parameters import Keep, TrainParameters
from chatmill.training.trainer import Trainer


class KeptWeights:
    """Keeps one copy of the best weights so far, on the CPU of the main process; for `last`, none."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self.step, self.bits_per_byte = 0, math.inf
        self._weights: dict[str, Tensor] = {}

    def compare(self, trainer: Trainer, bits_per_byte: float | None) -> None:
        """Keep the trainer's weights if they have fewer bits per byte on validation than those kept."""
        if self._keep == "last" or bits_per_byte is None or bits_per_byte >= self.bits_per_byte:
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
        self._weights = state["weights"] if is_main_process else {}


def describe_kept(kept: KeptWeights, parameters: TrainParameters) -> Iterator[str]:
    """The step whose weights were best, and a warning if it is of an earlier phase."""
    yield f"kept the weights of step {kept.step:,}: {kept.bits_per_byte:.4f} bits per byte on validation"
    phase, phases = parameters.phase_of(kept.step), len(parameters.phases or ())
    if phase < phases:
        yield (
            f"warning: step {kept.step:,} is of phase {phase} of {phases}: what later phases teach is not kept, since "
            "validation is of all sources without weights: train_model.keep = last keeps it"
        )
