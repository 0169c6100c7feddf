import pytest

from chatmill.run_display import Pace


def pace_after(phases, seconds, completed=0):
    """The pace after steps that take so many seconds each."""
    now = [0.0]
    pace = Pace(phases, completed, lambda: now[0])
    for one in seconds:
        now[0] += one
        pace.finish_step()
    return pace


def test_nothing_is_known_before_the_second_step():
    assert pace_after([(10, 1.0)], []).seconds_left is None
    assert pace_after([(10, 1.0)], [30]).seconds_left is None


def test_the_first_step_of_a_phase_is_left_out_of_the_pace_and_expected_again():
    assert pace_after([(10, 1.0)], [30, 2, 2]).seconds_left == 7 * 2
    assert pace_after([(10, 1.0), (5, 3.0)], [30, 2, 2]).seconds_left == 7 * 2 + 5 * 6 + 28


def test_a_phase_has_a_pace_of_its_own_once_it_is_measured():
    phases = [(3, 1.0), (5, 3.0)]
    assert pace_after(phases, [2, 2, 2, 10]).seconds_left == 4 * 6
    assert pace_after(phases, [2, 2, 2, 10, 9]).seconds_left == 3 * 9


def test_the_end_takes_no_time():
    assert pace_after([(1, 1.0), (3, 1.0)], [1, 5, 1, 1]).seconds_left == 0


@pytest.mark.parametrize(("completed", "left"), [(2, 6 * 2), (10, 0)])
def test_a_run_that_resumes_has_only_the_rest_to_do(completed, left):
    seconds = [2, 2] if completed < 10 else []
    pace = pace_after([(4, 1.0), (6, 1.0)], seconds, completed)
    assert (pace.seconds_left or 0) == left
