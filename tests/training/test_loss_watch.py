import math

import numpy as np
import pytest

import encode
from chatmill.conversation import Message, Record, render
from chatmill.encoded.token_files import read_split
from chatmill.run_display import LossWatch, describe_conversations
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.training.chains import Row
from chatmill.training.packing import PackedDataset, truncate_conversations
from support.tiny import VOCABULARY

# Losses of the first steps with the default parameters, and of a model of one layer that trains on one row a step.
DEFAULT = """
7.64 7.11 6.05 5.47 4.59 4.07 3.57 3.51 3.40 3.24 2.93 2.67 2.31 2.55 2.19 2.29 2.42 2.10 1.99 2.04 2.18 2.53 1.65
1.66 1.68 2.05 2.04 1.60 1.70 1.77 2.77 2.56 1.62 2.00 2.00 1.60 1.93 1.64 1.72 1.67 1.39 1.39 1.57 1.57 1.52 1.96
1.40 1.24 1.99 1.36 1.41 2.00 1.31 1.57 1.24 1.69 1.68 1.33 1.85 1.43 1.58 1.01 1.53 1.20 1.30 1.34 1.69 1.46 1.38
1.57 1.33 1.34 0.99 1.18 1.08 1.36 1.35 1.43 1.31 1.22 1.13 1.34 1.19 1.31 1.33 1.28 0.91 1.59 1.10 1.57 1.34 1.32
1.31 1.86 1.32 1.15 1.01 1.30 0.93 1.35 1.38 0.81 0.90 0.71 1.14 0.87 1.08 0.94 1.07 0.99 1.22 0.87 0.84 0.88 0.73
0.77 1.00 1.33 1.25 1.15 1.30 0.81 0.90 1.21 0.70 0.74 0.71 0.73 0.72 0.98 0.93 0.73 1.23 0.98 0.79 0.82 1.25 0.99
0.84 1.39
"""
NOISY = """
7.60 7.51 7.17 6.82 6.01 5.14 5.56 4.51 4.48 3.77 3.38 3.53 3.57 3.87 4.41 4.46 4.07 3.83 3.33 2.95 3.31 2.75 3.36
3.79 2.71 3.88 2.38 2.80 3.48 2.89 3.10 2.25 3.09 3.35 2.43 3.14 2.30 3.28 3.74 2.82 2.54 2.13 2.97 2.97 2.78 2.18
2.49 2.30 2.14 2.05 2.41 2.05 3.00 2.51 2.49 1.95 2.62 1.88 1.79 2.26 2.43 2.86 2.20 1.89 1.85 2.28 3.11 2.69 2.25
2.12 1.66 2.75 2.22 1.83 1.61 2.90 1.57 3.02 1.69 2.32 3.25 1.74 1.88 2.27 1.92 2.08 3.57 2.99 1.59 2.32 1.94 1.33
1.47 2.08 1.83 2.00 2.03 1.66 1.87 1.73 2.41 2.33 1.98 2.27 1.63 2.83 1.89 2.36 1.80 1.94 1.83 1.40 1.40 2.06 2.19
1.80 1.58 2.24 1.73 2.11 3.10 3.05 2.92 2.71 2.28 2.43 3.50 2.74 1.41 2.26 1.68 1.86 3.19 1.61 2.39 1.29 2.11 2.37
2.15 2.20
"""


def watch(losses, begin=1, watching=None):
    watching = watching or LossWatch()
    for step, loss in enumerate(losses, begin):
        watching.check(step, loss, lambda step=step: f"what step {step} read")
    return watching


def falling(steps):
    random = np.random.default_rng(0)
    return [7 * math.exp(-step / 30) + 1 + random.normal(0, 0.3) for step in range(steps)]


@pytest.mark.parametrize("losses", [[float(loss) for loss in text.split()] for text in (DEFAULT, NOISY)])
def test_ordinary_losses_are_no_spike(losses):
    assert list(watch(losses).losses) == losses[-64:]  # none counted as a spike


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_spike(seed):
    noise = np.random.default_rng(seed).gamma(4, 0.15, 2000)  # skewed, as hard batches are
    watching = watch(1 + noise)
    assert not watching.spike


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_at_once(loss):
    message = f"^step 31: the loss is {loss}: lower train_model.learning_rate, or look .*: what step 31 read$"
    with pytest.raises(ValueError, match=message):
        watch([*falling(30), loss])


def test_a_loss_that_jumps_and_stays_stops_and_names_the_step_of_the_jump():
    losses = [*[1.0] * 50, *[9.0] * 11]
    with pytest.raises(
        ValueError, match=r"^step 51: the loss rose from 1\.00 to 9\.00 and is 9\.00 10 .*step 51 read$"
    ):
        watch(losses)
    assert watch(losses[:-1]).spike[0] == (51, 9.0, "what step 51 read")


def test_a_loss_that_comes_back_is_let_be():
    watching = watch([*falling(60), *[30.0] * 10, *falling(120)[60:]])
    assert not watching.spike and 30.0 not in watching.losses


def test_a_loss_that_rises_from_the_first_step_on_stops():
    with pytest.raises(ValueError, match=r"^step 2: the loss rose from 7\.60"):
        watch([7.6, *[22.0] * 11])


def test_a_slow_rise_is_none():
    assert not watch([1 + step / 50 for step in range(500)]).spike


@pytest.mark.parametrize("pause", [10, 50, 53, 60])
def test_a_watch_goes_on_where_it_was(pause):
    losses, other = [*[1.0] * 50, *[9.0] * 10], LossWatch()
    other.load_state_dict(watch(losses[:pause]).state_dict())
    watch(losses[pause:], pause + 1, other)
    assert other.state_dict() == watch(losses).state_dict()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    talks = [[Message.from_text("user", f"say {i}\n")] for i in range(5)]
    talks += [
        [Message.from_text("user", "\x1b" + "long " * i), Message.from_text("assistant", "ü" * i)] for i in range(30)
    ]
    lines = (Record("talk", f"talk/{i}", render(talk)).to_json() for i, talk in enumerate(talks))
    (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    write_folder(VOCABULARY, folder / "tokenizer")
    encode.main(
        *(folder / n for n in ("train.jsonl", "train.jsonl", "tokenizer", "tokens")),
        template="chatml",
        part_tokens=10**9,
    )
    split = read_split(folder / "tokens", "train")
    return PackedDataset(split, truncate_conversations(split, 64, "chatml", VOCABULARY.special), 64, VOCABULARY.special)


def test_documents_are_named_by_their_lines_longest_first(dataset):
    names = describe_conversations(
        dataset, [Row(np.array(part, np.int64), np.zeros(len(part))) for part in ([0, 2], [], [1, 3])], VOCABULARY
    )
    assert names == (
        "lines 9 'user \\x1blong long long assistant üüü', 8 'user \\x1blong long assistant üü', "
        "7 'user \\x1blong assistant ü', 6 of train.jsonl"
    )


def test_of_many_documents_some_are_named(dataset):
    names = describe_conversations(dataset, list(dataset.epoch(0, 0)), VOCABULARY)
    assert names.count("'user") == 3 and names.endswith(" and 10 more of train.jsonl")
