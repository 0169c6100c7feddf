import math

import pytest
from pydantic import ValidationError

from chatmill.pipeline.params_file import read_params
from chatmill.run_display import length_warning
from chatmill.training.plan import RunLength, count_steps
from chatmill.training.train_parameters import TrainParameters
from support.paths import ROOT

PARAMETERS = read_params(ROOT / "params.yaml")["train_model"]
DEFAULT_EPOCH = 4_298_752  # tokens of the project's own training set


def parameters(**changes):
    return TrainParameters(**PARAMETERS | changes)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 25), (3, 75), (0.5, 12), (1.5, 38), (0.001, 1)])
def test_steps_are_those_that_the_epochs_take(epochs, steps):
    assert count_steps(epochs, 100_000, 4_000) == steps


@pytest.mark.parametrize(("steps", "epochs", "values"), [(5, 2, "5 and .* = 2.0"), (None, None, "null and .* = null")])
def test_both_or_neither_are_an_error_that_names_both(steps, epochs, values):
    message = f"train_model.steps = {values}: expected a number for one of them, and null for the other"
    with pytest.raises(ValueError, match=message.replace("and .*", "and train_model.epochs")):
        parameters(steps=steps, epochs=epochs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 9}, r"phases have epochs, from which the steps follow: set train_model\.steps: null"),
        ({"steps": None, "epochs": 2}, r"phases have a length of their own: set train_model\.epochs: null"),
        ({"steps": None, "phases": [{"steps": 4, "epochs": 1}]}, "expected either steps or epochs"),
        ({"steps": None, "phases": [{"source_weights": {}}]}, "expected either steps or epochs"),
    ],
)
def test_a_phase_has_steps_or_epochs_and_a_run_in_phases_no_epochs(changes, message):
    with pytest.raises(ValueError, match=message):
        parameters(**{"phases": [{"steps": 4}, {"epochs": 0.5}]} | changes)


@pytest.mark.parametrize("steps", [None, 9])
def test_the_steps_of_phases_need_not_be_added_up(steps):
    assert parameters(steps=steps, phases=[{"steps": 4}, {"steps": 5}]).steps == steps


@pytest.mark.parametrize("name", ["epochs", "learning_rate", "head_alignment", "tokens_per_chunk"])
def test_an_infinite_number_is_an_error(name):
    with pytest.raises(ValidationError, match=rf"{name}\n  Input should be a finite number"):
        parameters(**{name: math.inf})


def warned(steps, tokens_per_epoch=100_000):
    return length_warning(RunLength(steps, steps * 1_000, tokens_per_epoch))


@pytest.mark.parametrize("steps", [50, 100, 2000])
def test_from_half_an_epoch_to_twenty_nothing_is_wrong(steps):
    assert warned(steps) is None


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (49, "0.49 epochs leave most of the training set unread: train_model.steps = 50 are 0.5 epochs"),
        (2001, "after 20.0 epochs a model may know its training set by heart: train_model.steps = 2,000 are 20 epochs"),
    ],
)
def test_a_warning_says_what_to_set(steps, message):
    assert warned(steps).startswith(message)
    assert warned(int(message.split(" = ")[1].split()[0].replace(",", ""))) is None


def test_the_default_run_on_the_default_data_is_not_warned_of():
    steps, size = PARAMETERS["steps"], PARAMETERS["batch_size"]
    assert length_warning(RunLength(steps, steps * size, DEFAULT_EPOCH)) is None
