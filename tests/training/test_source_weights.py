from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.encoded.token_files import Sources
from chatmill.training.chains import draw_epoch, source_factors
from support.packed import pack

NAMES = ["letters", "skills", "talk"]
FACTORS = st.lists(st.floats(0, 4), min_size=1, max_size=4)
NUMBERS = st.lists(st.integers(1, 40), min_size=4, max_size=4)


def epochs(sources, factors, number, seed=0):
    """How often each conversation is read in each of some epochs."""
    random = np.random.default_rng(seed)
    for _ in range(number):
        yield np.bincount(draw_epoch(sources, np.array(factors), random), minlength=len(sources))


@given(FACTORS, NUMBERS, st.integers(0, 9))
def test_an_epoch_has_each_source_as_often_as_its_factor_says_up_to_one_conversation(factors, numbers, seed):
    numbers = numbers[: len(factors)]
    sources = np.repeat(np.arange(len(factors)), numbers)
    for times in epochs(sources, factors, 3, seed):
        for source, (factor, number) in enumerate(zip(factors, numbers, strict=True)):
            of_source = times[sources == source]
            assert abs(of_source.sum() - factor * number) < 1 + 1e-9
            assert np.ptp(of_source) <= 1
        assert abs(times.sum() - np.dot(factors, numbers)) < 1 + 1e-9


@given(
    st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
    st.floats(0, 60).map(lambda number: round(number, 2)),
    st.floats(0.1, 5),
)
def test_a_share_is_one_of_the_tokens_and_the_others_divide_the_rest(tokens, percent, factor):
    tokens = np.array(tokens)
    factors = source_factors({"letters": f"{percent}%", "talk": factor}, NAMES, tokens)
    read = factors * tokens
    assert read[0] / read.sum() == pytest.approx(percent / 100)
    assert read[2] / read[1] == pytest.approx(factor * tokens[2] / tokens[1])


@pytest.mark.parametrize(
    ("weights", "factors"),
    [
        ({}, [1, 1, 1]),
        ({"talk": 2.5, "letters": 0}, [0, 1, 2.5]),
        ({"letters": "50%"}, [9, 1, 1]),
        ({"letters": "50 %", "skills": 0, "talk": 3}, [18, 0, 3]),
        ({"letters": "20%", "skills": "30%", "talk": "50%"}, [2, 1, 5 / 6]),
        ({"letters": "20%", "skills": "30%", "talk": 0}, [1.6, 0.8, 0]),
        ({"unknown": "90%"}, [1, 1, 1]),
    ],
)
def test_factors_are_those_worked_out_by_hand(weights, factors):
    assert source_factors(weights, NAMES, np.array([10, 30, 60])).tolist() == pytest.approx(factors)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (dict.fromkeys(NAMES, 0), "nothing is left to train on: expected a weight above 0 for one of letters, ski"),
        ({"letters": "0%", "skills": 0}, r"nothing is left to train on: "),
        (
            {"letters": "60%", "skills": "40%"},
            r"the shares sum to 100%, which leaves nothing for talk: lower them, or set 0 there$",
        ),
    ],
)
def test_weights_that_leave_nothing_are_refused(weights, message):
    tokens = np.array([10, 30, 60]) if "40%" in weights.values() else np.array([10, 30, 0])
    with pytest.raises(ValueError, match=rf"^train_model\.source_weights: {message}"):
        source_factors(weights, NAMES, tokens)


# in rows


def dataset(weights, *, chained=0.5, numbers=(50, 200, 400)):
    """Conversations of three sources: few long ones, and many short ones."""
    lengths = {"letters": 60, "skills": 6, "talk": 6}
    talks = [[f"{name} {i:3}", "a" * lengths[name]] for name, n in zip(NAMES, numbers, strict=True) for i in range(n)]
    sources = Sources(NAMES, np.repeat(np.arange(3, dtype=np.uint16), numbers))
    return replace(pack(talks, 256, chained=chained), sources=sources, weights=weights)


def read_tokens(dataset, epochs):
    """The tokens that each source has in the rows of some epochs."""
    rows = [row for number in range(epochs) for row in dataset.epoch(1, number)]
    conversations = np.concatenate([row.conversations for row in rows])
    lengths = dataset.spans.packed_lengths[conversations] - np.concatenate([row.skipped for row in rows])
    return np.bincount(dataset.sources.of_conversations[conversations], lengths, len(NAMES))


@pytest.mark.parametrize("chained", [0.0, 0.5])
def test_the_tokens_of_the_rows_have_the_given_shares(chained):
    weighted = dataset({"letters": "10%", "talk": 3}, chained=chained)
    tokens, natural = read_tokens(weighted, 10), weighted.source_tokens()
    assert tokens[0] / tokens.sum() == pytest.approx(0.1, abs=0.005)
    assert weighted.source_shares() == pytest.approx(tokens / tokens.sum(), abs=0.005)
    assert tokens[2] / tokens[1] == pytest.approx(3 * natural[2] / natural[1], rel=0.03)


def test_no_chain_has_a_conversation_twice():
    for row in dataset({"talk": 3}, chained=1.0).epoch(1, 0):
        members = [*zip((row.skipped == 0).cumsum(), row.conversations, strict=True)]
        assert len(set(members)) == len(members)


def test_the_conversations_of_a_source_are_read_by_themselves_and_each_once():
    weighted = dataset({"letters": 0, "talk": 3})
    assert weighted.span_factors().tolist() == [0] * 50 + [1] * 200 + [3] * 400
    alone = weighted.of_source(1)
    assert alone.spans.starts.tolist() == weighted.split.offsets[50:250].tolist()
    assert alone.span_factors().tolist() == [1] * 200 and alone.source_tokens().tolist()[::2] == [0, 0]
    with pytest.raises(ValueError, match="less than one conversation is left for an epoch: expected larger weights"):
        dataset({"letters": 0, "skills": 0, "talk": 0.002}).source_factors()
    assert dataset({"letters": 0, "skills": 0, "talk": 0.003}).source_factors().tolist() == [0, 0, 0.003]
