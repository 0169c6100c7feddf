from dataclasses import replace

import pytest
import torch

from chatmill.model.chat_model import MAX_WHOLE_VOCAB
from chatmill.training.distributed import SINGLE_PROCESS
from chatmill.training.hardware import HardwareSettings
from chatmill.training.plan import SHORT_ROW, plan_steps
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import make_trainer
from support.packed import pack
from support.tiny import CONFIG, random_model

SIZE = {"depth": 1, "context": 512, "steps": 10, "batch_size": 1024, "prompt_loss_weight": 0.1}
PARAMETERS = TrainParameters(**SIZE, seed=3, threads=1, precision="float32", compile=False)
SHORT, LONG = ["a" * 40, "b" * 40], ["a" * 150, "b" * 150]


def plan(talks, *, row_length=512):
    return plan_steps(PARAMETERS, pack(talks, row_length, chained=0.5), 512, SINGLE_PROCESS)


def test_epochs_are_counted_in_rows_of_the_context():
    packed = pack([["a" * 300, "b"]] * 10, 512)  # a row each, and two rows a step
    plans = [
        plan_steps(PARAMETERS.model_copy(update={"steps": None, "epochs": epochs}), packed, 512, SINGLE_PROCESS)
        for epochs in (1, 3, 0.4)
    ]
    assert [plan.steps for plan in plans] == [5, 15, 2]
    assert [plan.tokens for plan in plans] == [10 * 512, 30 * 512, 4 * 512]
    assert [plan.epochs for plan in plans] == [1, 3, 0.4]


def described(steps):
    return [(phase.dataset.row_length, [row.conversations.tolist() for row in rows]) for phase, rows in steps]


def test_a_run_begins_with_short_rows_of_the_conversations_that_fit():
    short, full = plan([SHORT] * 50 + [LONG] * 2).phases
    assert (short.steps, full.steps) == (7, 3)
    assert (short.dataset.row_length, full.dataset.row_length) == (SHORT_ROW, 512)
    assert short.rows_per_step * SHORT_ROW == full.rows_per_step * 512 == PARAMETERS.batch_size
    assert len(short.dataset.spans.starts) == 50 and len(full.dataset.spans.starts) == 52
    assert short.dataset.spans.packed_lengths.max() <= SHORT_ROW


@pytest.mark.parametrize("completed", [0, 1, 6, 7, 8, 10])
def test_a_run_that_resumes_sees_the_rows_of_one_that_was_not_stopped(completed):
    whole = plan([SHORT] * 50 + [LONG] * 2)
    assert described(whole.steps_after(completed)) == described(whole.steps_after(0))[completed:]


@pytest.mark.slow
@pytest.mark.parametrize("longest_masked_row", [0, 1024])
def test_compiled_layers_of_a_model_with_a_large_vocabulary_train_as_others_do(longest_masked_row):
    config, losses = replace(CONFIG, vocab_size=MAX_WHOLE_VOCAB + 64), []
    steps = plan([["a" * size, "b" * (90 - size)] for size in range(5, 85)]).steps_after(0)
    batches = [phase.dataset.batches(rows, phase.rows_per_batch) for phase, rows in steps][:3]
    for compiled in (False, True, True):
        hardware, num_bytes = HardwareSettings("cpu", "float32", compiled), torch.ones(config.vocab_size)
        trainer = make_trainer(random_model(config), PARAMETERS, 3, hardware, num_bytes, SINGLE_PROCESS)
        trainer.longest_masked_row = longest_masked_row * compiled
        losses.append([trainer.step(of_step).loss for of_step in batches])
    torch.use_deterministic_algorithms(False)  # as before
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-5)
