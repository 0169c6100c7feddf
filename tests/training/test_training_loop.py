from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from chatmill.encoded.token_files import Sources
from chatmill.training.distributed import SINGLE_PROCESS
from chatmill.training.plan import SHORT_ROW, plan_steps
from chatmill.training.train_parameters import TrainParameters
from support.packed import pack

PARAMETERS = TrainParameters(
    depth=1,
    context=512,
    steps=10,
    batch_size=1024,
    prompt_loss_weight=0.1,
    seed=3,
    threads=1,
    precision="float32",
    compile=False,
)
SHORT, LONG = ["a" * 40, "b" * 40], ["a" * 150, "b" * 150]


def plan(talks, *, row_length=512):
    return plan_steps(PARAMETERS, pack(talks, row_length, chained=0.5), 512, SINGLE_PROCESS)


def test_epochs_are_counted_in_rows_of_the_context():
    packed = pack([["a" * 300, "b"]] * 10, 512)  # a row each, and two rows a step
    lengths = [
        plan_steps(PARAMETERS.model_copy(update={"steps": None, "epochs": epochs}), packed, 512, SINGLE_PROCESS).length
        for epochs in (1, 3, 0.4)
    ]
    assert [length.steps for length in lengths] == [5, 15, 2]
    assert [length.tokens for length in lengths] == [10 * 512, 30 * 512, 4 * 512]
    assert [length.epochs for length in lengths] == [1, 3, 0.4]


def described(steps):
    return [(phase.dataset.row_length, [row.conversations.tolist() for row in rows]) for phase, rows in steps]


def test_a_run_begins_with_short_rows_of_the_conversations_that_fit():
    short, full = plan([SHORT] * 50 + [LONG] * 2).phases
    assert (short.steps, full.steps) == (7, 3)
    assert (short.dataset.row_length, full.dataset.row_length) == (SHORT_ROW, 512)
    assert short.rows_per_step * SHORT_ROW == full.rows_per_step * 512 == PARAMETERS.batch_size
    assert len(short.dataset.spans.starts) == 50 and len(full.dataset.spans.starts) == 52
    assert short.dataset.spans.packed_lengths.max() <= SHORT_ROW


@pytest.mark.parametrize(
    ("talks", "row_length"), [([SHORT] * 4 + [LONG] * 4, 512), ([SHORT] * 50, SHORT_ROW), ([["a" * 600, "b"]], 512)]
)
def test_rows_are_never_short_where_less_than_half_fits_or_the_context_is_short(talks, row_length):
    (phase,) = plan(talks, row_length=row_length).phases
    assert (phase.steps, phase.dataset.row_length) == (10, row_length)


@pytest.mark.parametrize("completed", [0, 1, 6, 7, 8, 10])
def test_a_run_that_resumes_sees_the_rows_of_one_that_was_not_stopped(completed):
    whole = plan([SHORT] * 50 + [LONG] * 2)
    assert described(whole.steps_after(completed)) == described(whole.steps_after(0))[completed:]


def weighted_plan(letters=LONG, **changes):
    """The plan for 40 short conversations of two sources each, and 10 letters."""
    talks = [SHORT] * 80 + [letters] * 10
    sources = Sources(["letters", "skills", "talk"], np.array([2] * 40 + [1] * 40 + [0] * 10, np.uint16))
    parameters = TrainParameters(**PARAMETERS.model_dump() | changes)
    return plan_steps(parameters, replace(pack(talks, 512, chained=0.5), sources=sources), 512, SINGLE_PROCESS)


def test_shares_hold_in_short_rows_and_in_long_ones():
    plan = weighted_plan(SHORT, steps=200, source_weights={"letters": "50%"})
    for part in plan.phases:
        rows = [row for phase, rows in plan.steps_after(0) if phase is part for row in rows]
        read = np.bincount(part.dataset.sources.of_conversations[np.concatenate([row.conversations for row in rows])])
        assert read[0] / read.sum() == pytest.approx(0.5, abs=0.03)


def read_shares(plan, steps):
    """The share of each source in the tokens of the first steps."""
    read = 0
    for phase, rows in islice(plan.steps_after(0), steps):
        data = phase.dataset
        for row in rows:
            places = np.searchsorted(data.split.offsets, data.spans.starts[row.conversations], side="right") - 1
            lengths = data.spans.packed_lengths[row.conversations] - row.skipped
            read += np.bincount(data.sources.of_conversations[places], lengths, len(data.sources.names))
    return read / read.sum()


def mixed_plan(long, **changes):
    """The plan for 60 short conversations of `talk`, and of `letters` as many tokens, so many of them in long ones."""
    talks = [SHORT] * 60 + [LONG] * long + [SHORT] * (60 - round(long * 322 / 102))
    sources = Sources(["letters", "talk"], np.array([1] * 60 + [0] * (len(talks) - 60), np.uint16))
    parameters = TrainParameters(**PARAMETERS.model_dump() | {"steps": 300} | changes)
    return plan_steps(parameters, replace(pack(talks, 512, chained=0.5), sources=sources), 512, SINGLE_PROCESS)


def test_the_shares_of_a_run_without_weights_are_those_of_the_data_in_its_rows():
    plan = mixed_plan(9)
    assert read_shares(plan, 210)[0] == pytest.approx(32 / 92, abs=0.02)


def test_the_effect_of_weights_is_logged_and_unknown_sources_are_named(capsys):
    weighted_plan()
    assert capsys.readouterr().err == ""
    weighted_plan(SHORT, source_weights={"letters": "50%", "visits": 2, "talks": "3%"})
    assert capsys.readouterr().err == (
        "train_model: no conversations of talks, visits: their weights are ignored; there are letters, skills, talk\n"
        "train_model: tokens by source (times that each conversation is read in an epoch): "
        "letters 50.0% (8), skills 25.0% (1), talk 25.0% (1)\n"
    )
