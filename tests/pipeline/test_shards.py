"""Shards are whole lines of a file, and the processes that work on them may die."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.pipeline.shards import available_workers, shards_of, worker_pool
from support.shard_functions import killed, killed_once, refused, squared


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 30))
def test_shards_have_each_line_once_and_in_order(tmp_path_factory, lines, size):
    file = tmp_path_factory.getbasetemp() / "lines"
    file.write_bytes(b"\n".join(lines))
    assert b"".join(line for shard in shards_of(file, size) for line in shard.lines()) == file.read_bytes()
    assert all(end - start <= size for _, start, end in shards_of(file, size))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_results_come_in_order_from_any_number_of_processes(count):
    with worker_pool(count) as ordered_map:
        assert list(ordered_map(squared, range(50))) == [i * i for i in range(50)]
        assert list(ordered_map(squared, iter(""))) == []
        assert next(iter(ordered_map(squared, iter(range(3, 9))))) == 9


def test_of_a_process_that_is_killed_only_its_shard_is_done_again(tmp_path):
    with worker_pool(2) as ordered_map:
        assert list(ordered_map(partial(killed_once, folder=tmp_path), range(20))) == [i * i for i in range(20)]
    assert sorted(map(int, (tmp_path / "calls").read_text().split())) == list(range(20))


def test_a_shard_on_which_every_process_is_killed_is_named():
    with (
        worker_pool(2) as ordered_map,
        pytest.raises(ValueError, match=r"^5: 3 processes .* were killed, as for"),
    ):
        list(ordered_map(killed, [5]))


def test_an_error_comes_after_the_results_before_it():
    given = []
    with worker_pool(2) as ordered_map, pytest.raises(ValueError, match=r"^1 is no"):
        given.extend(ordered_map(refused, [1, 2]))
    assert given == []


def test_the_number_of_processes_is_set_by_the_environment(monkeypatch):
    monkeypatch.delenv("CHATMILL_WORKERS", raising=False)
    assert available_workers() >= 1
    monkeypatch.setenv("CHATMILL_WORKERS", "7")
    assert available_workers() == 7
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("CHATMILL_WORKERS", wrong)
        with pytest.raises(ValueError, match=f"expected a number of processes from 1, got '{wrong}'"):
            available_workers()
