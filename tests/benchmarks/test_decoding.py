import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from decoding import Turn, guess, steps

COSTS = {1: 1.0, 2: 1.5, 3: 2.0}


def test_what_followed_the_same_ids_is_guessed_and_given_in_one_step():
    turn = Turn([1, 2, 3, 4], [5, 1, 2, 3, 4, 6], [True] * 6)
    assert list(steps(turn, {2: 2})) == [(1, 1), (1, 1), (1, 1), (3, 3)]
    assert list(steps(turn, {1: 1, 2: 2})) == [(1, 1), (1, 1), (2, 2), (3, 2)]


def test_guesses_that_are_wrong_cost_what_they_read():
    turn = Turn([1, 2, 1, 3, 1], [4, 1, 5], [True] * 3)
    assert list(steps(turn, {1: 2})) == [(3, 1), (1, 1), (3, 1)]
    assert guess([turn], {1: 2}, COSTS) == (1.0, pytest.approx(3 / 5))


def test_what_a_tool_puts_in_is_neither_a_step_nor_guessed():
    turn = Turn([1, 7, 7], [1, 7, 7, 7], [True, False, False, True])
    assert list(steps(turn, {1: 2})) == [(2, 1), (2, 1)]
