import numpy as np
import pytest

from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.evaluation.scoring import make_prefix_scorer, make_scorer
from support.tiny import CONFIG, random_model


class OneChat:
    """An engine that holds one chat, and so cannot continue with logits after each id."""

    def __init__(self, engine):
        self.name, self.device, self.num_bytes = engine.name, engine.device, engine.num_bytes
        self.vocab_size, self.context, self.length = engine.vocab_size, engine.context, 0
        self.fingerprint, self.template = engine.fingerprint, engine.template
        self.sequence_logits = engine.sequence_logits


@pytest.mark.parametrize("wrapped", [lambda engine: engine, OneChat])
def test_windows_that_share_their_beginning_have_the_nats_that_each_has_by_itself(wrapped):
    engine = PyTorchEngine(random_model(CONFIG), device="cpu", threads=1)
    first = np.random.default_rng(0).integers(0, 256, 40)
    windows = [first, first, first[:9], first[:20], np.append(first[:12], [7, 8]), first[::-1].copy(), first[:2]]
    found = make_prefix_scorer(wrapped(engine))(windows)
    for nats, expected in zip(found, make_scorer(engine)(windows), strict=True):
        np.testing.assert_allclose(nats, expected, atol=1e-4)
