"""From a teacher's predictions to a model that has learnt from them."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from chatmill.encoded.token_files import read_meta, read_split
from chatmill.teacher.predictions import read_predictions
from chatmill.training.optimizer import muon_adamw
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.trainer import Trainer
from support.tiny import CONFIG, VOCABULARY, random_model
from support.training_runs import kill_when_saved, run_training, training_command, write_tokens

WEIGHTS = "model/model.safetensors"


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Tokens with predictions by n-grams."""
    return write_tokens(tmp_path_factory.mktemp("tokens"), ngram_order=4)


@pytest.fixture(scope="module")
def untaught(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("untaught"))


@pytest.fixture
def dataset(taught):
    split = read_split(taught / "tokens", "train")
    predictions, _ = read_predictions(taught / "teacher", read_meta(taught / "tokens"))
    spans = truncate_conversations(split, 64, "chatml", VOCABULARY.special)
    return PackedDataset(split, spans, 64, VOCABULARY.special, chained=0.5, teacher=predictions)


def trainer(**changes):
    model = random_model(CONFIG)
    options = {"steps": 10, "prompt_weight": 0.1, "precision": "float32", "compiled": False} | changes
    num_bytes = torch.tensor(VOCABULARY.byte_lengths)
    return Trainer(model, muon_adamw(model, 0.01, torch.float32), num_bytes, **options)


@pytest.mark.parametrize("chained", [0.0, 1.0])
def test_each_target_has_its_own_prediction(dataset, chained):
    dataset, compared = replace(dataset, chained=chained), 0
    for row in dataset.epoch(0, 0):
        batch, end = dataset.batch([row]), 0
        for i, skipped in zip(row.conversations, row.skipped, strict=True):
            start, length = dataset.spans.starts[i] + skipped, dataset.spans.lengths[i] - skipped
            for own, place in zip(range(start, start + length), range(end - 1, end + length - 1), strict=True):
                if place >= 0:  # the first token of a row is no target
                    assert batch.targets[0, place] == dataset.split.ids[own]
                    assert (batch.teacher.tokens[0, place] == dataset.teacher.tokens[own]).all()
                    assert (batch.teacher.chances[0, place] == dataset.teacher.chances[own]).all()
                    compared += batch.teacher.chances[0, place].any()
            end += length
        assert (row.skipped > 0).any() or not chained or len(row.conversations) == 1
        assert (batch.teacher.chances[0, end:] == 0).all()
    assert compared > 1000


def test_the_loss_is_that_of_the_mixture_of_token_and_prediction(dataset):
    batch = dataset.batch(list(dataset.epoch(0, 0))[:3])
    learner = trainer(teacher_weight=0.5)
    loss = learner._loss(batch)[0]
    logits = learner.model(torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), mask_of(batch))
    nats = -logits.log_softmax(-1)
    targets = torch.zeros_like(nats).scatter_add_(2, *map(torch.from_numpy, batch.teacher)) * 0.5
    own = torch.from_numpy(batch.targets)[..., None]
    targets = targets.scatter_add(2, own, 1 - targets.sum(2, keepdim=True))
    weights = torch.tensor([0.0, 0.1, 1.0])[torch.from_numpy(batch.loss)]
    assert loss.item() == pytest.approx(((targets * nats).sum(2) * weights).sum().item(), rel=1e-5)
    assert learner.evaluate([batch]) == learner.evaluate([batch._replace(teacher=None)])


def mask_of(batch):
    """(B, 1, T, T) which tokens may attend to which."""
    conversations = torch.from_numpy(batch.conversation_ids)
    same = conversations[:, None, :, None] == conversations[:, None, None, :]
    return same.tril()


def test_the_weight_falls_to_zero():
    learner, weights = trainer(teacher_weight=0.7), []
    for learner.completed_steps in range(10):
        weights.append(learner.teacher_weight)
    assert weights == pytest.approx([0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0, 0])


def test_a_model_learns_from_it_and_says_so(taught, untaught, tmp_path):
    for name, tokens, changes in (
        ("one", taught, {}),
        ("again", taught, {}),
        ("unweighted", taught, {"teacher_weight": 0.0}),
        ("untaught", untaught, {}),
    ):
        run_training(tokens, tmp_path / name, **changes)
    one, again, unweighted, untaught = ((tmp_path / name / WEIGHTS).read_bytes() for name in names())
    assert one == again != untaught
    assert unweighted == untaught
    told = json.loads((tmp_path / "one/model/config.json").read_text())["chatmill"]
    assert (told["teacher"], told["teacher_weight"]) == ({"kept": 5, "ngram": {"order": 4}}, 0.7)
    assert "teacher" not in json.loads((tmp_path / "untaught/model/config.json").read_text())["chatmill"]


def names():
    return "one", "again", "unweighted", "untaught"


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(taught, tmp_path):
    options = {"steps": 40, "checkpoint_every": 2}
    whole, killed = run_training(taught, tmp_path / "whole", **options), tmp_path / "killed"
    environment = os.environ | {"DVC_ROOT": str(killed), "OMP_NUM_THREADS": "1"}

    def start():
        command = [sys.executable, *training_command(taught, killed, **options)]
        return subprocess.Popen(command, cwd=killed, env=environment, stderr=subprocess.DEVNULL)

    kill_when_saved(start(), killed)
    assert start().wait() == 0
    assert (killed / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
