import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.inference.sampler import Generation, Sampler, Sampling, Tool, penalized
from support.scripted import ScriptedEngine

ALL = np.ones(8, bool)
LOGITS = st.lists(st.integers(-4, 4), min_size=8, max_size=8).map(lambda values: np.array(values, np.float32))


def greedy(allowed=ALL):
    return Sampler(allowed, Sampling())


def run(script, prompt=(1, 2), **options):
    """The generated ids, and those that the engine was given."""
    engine = ScriptedEngine(script, vocab_size=8, context=options.pop("context", 100))
    settings = {"sampler": greedy(), "stop_ids": {7}, "max_tokens": 50} | options
    generation, generated = Generation(prompt, remaining_context=engine.context - len(prompt), **settings), []
    while not generation.done:
        generated += generation.step(engine.append(generation.pending))
    return generated, engine.received_ids


def test_each_id_is_read_once_and_the_stop_id_not_at_all():
    assert run([3, 4, 7]) == ([3, 4, 7], [[1, 2], [3], [4]])


def test_it_ends_without_a_stop_id_after_max_tokens_or_a_full_context():
    assert run([3] * 50, max_tokens=4)[0] == [3] * 4
    assert run([3] * 50, context=6)[0] == [3] * 4
    assert run([3] * 50, max_tokens=0)[0] == []


TOOL = Tool(start_id=5, end_id=6, run=lambda call: [0, *call, 0])


def test_output_of_a_call_is_forced_in_and_read_with_the_call_end():
    generated, received = run([5, 3, 4, 6, 2, 7], tool=TOOL)
    assert generated == [5, 3, 4, 6, 0, 3, 4, 0, 2, 7]
    assert received[4] == [6, 0, 3, 4, 0]


@given(LOGITS, st.integers(1, 255))
def test_greedy_picks_the_lowest_of_the_likeliest_allowed(logits, mask):
    allowed = np.array([bool(mask >> i & 1) for i in range(8)])
    best = max(logits[allowed])
    assert greedy(allowed).sample(logits) == min(i for i in range(8) if allowed[i] and logits[i] == best)


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 3),
)


def slow_candidates(logits, allowed, sampling):
    """The definition, one token at a time."""
    order = sorted((i for i in range(8) if allowed[i]), key=lambda i: (-logits[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = [np.exp(float(logits[i]) / sampling.temperature) for i in order]
    candidates, total = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if total / sum(weights) < sampling.top_p and weight >= sampling.min_p * weights[0] * (1 - 1e-12):
            candidates.append(i)
        total += weight
    return candidates


@given(LOGITS, st.integers(1, 255), SAMPLINGS)
def test_candidates_are_those_of_the_definition(logits, mask, sampling):
    allowed = np.array([bool(mask >> i & 1) for i in range(8)])
    sampler = Sampler(allowed, sampling)
    ids, _ = sampler.candidates(np.where(allowed, logits, -np.inf), max(logits[allowed]))
    assert ids == slow_candidates(logits, allowed, sampling)
    assert sampler.sample(logits) in ids


def test_a_seed_gives_the_same_draws_and_another_others():
    def draws(seed):
        sampler = Sampler(ALL, Sampling(temperature=1.0, seed=seed))
        return [sampler.sample(np.zeros(8, np.float32)) for _ in range(30)]

    assert draws(1) == draws(1) != draws(2)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    penalised = penalized(np.array([2.0, -2.0, 3.0, 0.0]), [0, 0, 1], Sampling(repetition_penalty=2.0))
    assert penalised.tolist() == [1.0, -4.0, 3.0, 0.0]
    assert Sampler(np.ones(2, bool), Sampling(repetition_penalty=2.0)).sample(np.array([3.0, 2.0]), [0]) == 1


@pytest.mark.parametrize(
    "setting", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"min_p": 2}, {"repetition_penalty": 0}]
)
def test_settings_out_of_range_are_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=rf"^{name}: expected .+, got {setting[name]}$"):
        Sampling(**setting)
