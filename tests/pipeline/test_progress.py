import sys

import pytest
from tqdm import tqdm

from chatmill.pipeline.progress import ProgressLines, progress


class FakeClock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def lines_of(items, capsys, seconds=1.0, **options):
    """What counting the items writes, when each takes so many seconds."""
    clock, counted = FakeClock(), []
    for item in ProgressLines(items, "count", clock=clock, total=len(items), **options):
        clock.now += seconds
        counted.append(item)
    assert counted == list(items)
    return capsys.readouterr().err.splitlines()


def test_lines_come_after_twice_as_long_and_then_every_minute(capsys):
    assert [line.split()[1] for line in lines_of(range(300), capsys)] == ["10", "20", "40", "80", "140", "200", "260"]


def test_what_takes_under_ten_seconds_is_silent(capsys):
    assert lines_of(range(9), capsys) == []


def test_lines_say_how_many_of_how_many_and_the_time_that_is_left(capsys):
    lines = ["count: 10 of 40, 30 s left", "count: 20 of 40, 20 s left", "count: 40 of 40, 0 s left"]
    assert lines_of(range(40), capsys) == lines


def test_the_time_of_the_first_item_which_may_compile_is_not_expected_of_others(capsys):
    clock = FakeClock()
    for number, _ in enumerate(ProgressLines(range(40), "count", total=40, clock=clock)):
        clock.now += 1.0 if number else 60.0
    assert capsys.readouterr().err.splitlines()[:2] == ["count: 1 of 40", "count: 21 of 40, 19 s left"]


@pytest.mark.parametrize(("terminal", "kind"), [(True, tqdm), (False, ProgressLines)])
def test_bars_are_for_terminals(monkeypatch, terminal, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert isinstance(progress([1], "count"), kind)
