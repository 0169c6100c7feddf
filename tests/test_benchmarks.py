import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chatmill.model import ModelConfig

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import ablation
import learning
import training

CONTEXT = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some short dialogues, prepared and encoded."""
    folder = tmp_path_factory.mktemp("data")
    lines = (f"How are the {i} ? __eou__ {'Fine . ' * (i % 5 + 1)}__eou__\n" for i in range(100))
    (folder / "talks.txt").write_text("".join(lines))
    learning.make_data(folder, {"dailydialog": folder / "talks.txt"}, 320, validation_share=0.2)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return learning.Data(folder)


@pytest.fixture
def config(data):
    return ModelConfig.from_depth(1, vocab_size=data.vocab_size, context=CONTEXT)


def make(kind, data, config):
    if kind == "chatmill":
        return learning.Chatmill(data, config, 1, 0.0)
    return {"plain": training.Plain, "transformers": training.Transformers}[kind](data, config, 0.01, "float32")


def test_steps_fill_the_time_as_fast_as_they_turn_out_to_be(monkeypatch):
    now, taken = 0.0, []
    monkeypatch.setattr(learning, "perf_counter", lambda: now)
    for step in learning.planned(10.0, typical=3.0, limit=None):
        taken.append(step)
        now += 1
    assert taken == [(0, 3), *((done, 10) for done in range(1, 10))]


def test_equal_chances_take_as_many_bits_as_the_vocabulary_has_for_each_token(data):
    ids, _, _ = data.validation
    text = data.num_bytes[ids]
    expected = np.log2(data.vocab_size) * (text > 0).sum() / text.sum()
    everything, _ = data.bits_per_byte(lambda ids: torch.zeros(*ids.shape, data.vocab_size), CONTEXT)
    assert everything == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["chatmill", "plain", "transformers"])
def test_every_competitor_learns_and_counts_no_padding(kind, data, config):
    pytest.importorskip("transformers")
    learner = make(kind, data, config)
    before = data.bits_per_byte(learner.logits, CONTEXT)
    counts = [learner.step(done, 20) for done in range(20)]
    assert data.bits_per_byte(learner.logits, CONTEXT) < before
    assert all(0 < count.useful <= count.all for count in counts)


@pytest.mark.parametrize("kind", ["chatmill", "plain", "transformers"])
def test_no_competitor_sees_what_comes(kind, data, config):
    pytest.importorskip("transformers")
    learner, ids = make(kind, data, config), torch.arange(CONTEXT)[None]
    learner.step(0, 1)
    changed = torch.cat((ids[:, :20], ids[:, 20:] + 1), dim=1)
    torch.testing.assert_close(learner.logits(ids)[:, :20], learner.logits(changed)[:, :20])


@pytest.mark.slow
def test_every_choice_changes_what_is_learnt(folder, monkeypatch):
    monkeypatch.setattr(ablation, "CONTEXT", CONTEXT)
    chosen = ablation.CHOICES.keys() - {"no warm-up"}  # nobody warms up for as few steps
    learnt = {ablation.train(str(folder), choice, 1, 1.0, 4, 1)["all"] for choice in chosen}
    assert len(learnt) == len(chosen)
