import json

import pytest
import torch

from chatmill.encoded.token_files import read_split
from chatmill.model.chat_model import load_chat_model
from chatmill.training.checkpoint import Checkpoint
from chatmill.training.optimizer import muon_adamw
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.trainer import Trainer
from chatmill.training.training_loop import KeptWeights
from support.packed import pack
from support.tiny import CONFIG, VOCABULARY, random_model
from support.training_runs import read_curve, run_training, write_tokens

BITS = [3.0, 2.0, 2.5, 2.0]  # of which the second is the best, as the first of equals


def new_trainer(model):
    num_bytes = torch.tensor(VOCABULARY.byte_lengths)
    optimizer = muon_adamw(model, 0.01, torch.float32)
    return Trainer(model, optimizer, num_bytes, steps=10, prompt_weight=0.1, precision="float32", compiled=False)


def copy_of(trainer):
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def run(kept, bits, trainer):
    """The weights after each step, in which the model measures so many bits per byte."""
    dataset, seen = pack([["why", "so"]] * 4, 32), []
    batches = dataset.batches(list(dataset.epoch(0, 0)), 1)
    for one in bits:
        trainer.step(batches)
        kept.keep_if_better(trainer, one)
        seen.append(copy_of(trainer))
    return seen


def assert_equal(weights, others):
    assert all(torch.equal(weights[name], others[name]) for name in others) and weights.keys() == others.keys()


def test_the_best_weights_are_those_of_the_step_that_was_best():
    trainer, kept = new_trainer(random_model(CONFIG)), KeptWeights("best")
    seen = run(kept, BITS, trainer)
    assert_equal(kept.final(trainer), seen[1])
    assert (kept.step, kept.bits_per_byte) == (2, 2.0)
    assert not torch.equal(seen[1]["model.norm.weight"], seen[3]["model.norm.weight"])


def test_a_state_brings_the_best_back(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    trainer, kept = new_trainer(random_model(CONFIG)), KeptWeights("best")
    seen = run(kept, BITS, trainer)
    assert Checkpoint("run").save(kept.state_dict())
    resumed = KeptWeights("best")
    resumed.load_state_dict(Checkpoint("run").load(), is_main_process=True)
    resumed.keep_if_better(trainer, 2.2)
    assert_equal(resumed.final(trainer), seen[1])
    resumed.keep_if_better(trainer, 1.9)
    assert_equal(resumed.final(trainer), seen[3])


@pytest.fixture(scope="module")
def contrary(tmp_path_factory):
    """Tokens with which a model gets worse at validation the better it learns."""
    return write_tokens(tmp_path_factory.mktemp("contrary"), held_out_answers=("zzzz", "zzzz"))


def validation_bits(folder, tokens):
    """Bits per byte of the model in a folder on the validation set."""
    split = read_split(tokens / "tokens", "validation")
    spans = truncate_conversations(split, 64, "chatml", VOCABULARY.special)
    dataset = PackedDataset(split, spans, 64, VOCABULARY.special)
    model, _ = load_chat_model(folder / "model", torch.device("cpu"))
    return new_trainer(model).evaluate(dataset.batches(list(dataset.epoch(0, 0)), 1))[0].bits_per_byte


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"processes": 2}, marks=pytest.mark.slow),
        pytest.param({"processes": 2, "shard": True}, marks=pytest.mark.slow),
        pytest.param({"embedding": "bytes"}, marks=pytest.mark.slow),
    ],
)
def test_the_model_that_is_written_is_the_best_of_the_curve(contrary, tmp_path, capfd, options):
    run_training(contrary, tmp_path, steps=30, keep="best", **options)
    measured = {
        int(line["step"]): float(bits) for line in read_curve(tmp_path) if (bits := line["validation_bits_per_byte"])
    }
    best = min(measured, key=measured.get)
    assert list(measured) == [10, 20, 30] and best < 30
    assert validation_bits(tmp_path, contrary) == pytest.approx(measured[best], rel=1e-4)
    assert json.loads((tmp_path / "model/config.json").read_text())["chatmill"]["kept_step"] == best
    line = f"train_model: kept the weights of step {best}: {measured[best]:.4f} bits per byte on validation"
    assert line[:-30] in capfd.readouterr().err
