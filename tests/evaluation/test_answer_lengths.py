from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation.answer_lengths import count_by_power, measure_lengths
from support.tiny import byte_tokenizer


def test_lengths_are_those_in_tokens():
    answers = ["", "a", "\u00e9\u00e9", "abcd", "abcdef"]
    assert measure_lengths(answers, byte_tokenizer()) == {
        "mean": 3.0,
        "longest": 6,
        "counts": {"0": 1, "1": 1, "4": 3},
    }


def test_without_answers_nothing_is_measured():
    assert measure_lengths([], byte_tokenizer()) == {}


@given(st.lists(st.integers(0, 1 << 20)))
def test_each_length_counts_once_between_a_power_of_two_and_the_next(lengths):
    counts = count_by_power(lengths)
    expected = {low: sum(low <= length < max(1, 2 * low) for length in lengths) for low in map(int, counts)}
    assert {int(low): number for low, number in counts.items()} == expected
    assert sum(counts.values()) == len(lengths)
