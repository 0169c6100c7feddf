"""How engines score text: from windows of ids to the nats of their tokens."""

import numpy as np

from chatmill.engines.engine import Engine
from chatmill.evaluation.bits_per_byte import Score, nats_of_logits
from chatmill.pipeline.progress import progress


def score_by(engine: Engine) -> Score:
    """In batches where it is PyTorch with our own model, else one window after another."""
    if engine.name == "pytorch":
        from chatmill.evaluation.batches import score_in_batches  # exports are scored where PyTorch is not installed

        return score_in_batches(engine.model)

    def score_windows(windows: list[np.ndarray]) -> list[np.ndarray]:
        return [nats_of_logits(engine.score(ids.tolist()), ids) for ids in progress(windows, engine.name, unit="text")]

    return score_windows
