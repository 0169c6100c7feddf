"""Work on shards by several processes, whose number and place change no byte of what is made."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from chatmill.pipeline.processes import die_with_parent, scripts_on_path
from chatmill.pipeline.settings import setting, variable
from chatmill.shards import ray_engine, slurm_engine
from chatmill.shards.worker_errors import KILLED, LESS_AT_ONCE, sendable

OrderedMap = Callable[..., Iterable[Any]]  # as `map` over one iterable

_CLUSTERS = {"ray": ray_engine.started, "slurm": slurm_engine.started}
ENGINES = ("local", *_CLUSTERS)
ATTEMPTS = 3  # of a shard, whose process was killed
AHEAD = 2  # shards for each process that are begun or wait for those before them, which bounds the memory


def available_workers() -> int:
    """The number of processes that may work at once: the setting `workers`, or that of this process's processors.

    Raises ValueError for a value that is no number from 1.
    """
    if text := setting("workers"):
        if not (text.isdecimal() and int(text)):
            raise ValueError(f"{variable('workers')}: expected a number of processes from 1, got {text!r}")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_pool(most: int) -> Iterator[OrderedMap]:
    """A `map` over several processes, of which there are `most` at most, that preserves the order of results.

    The processes are those of this machine, or of the engine that the setting `engine` names. The function, which must
    do the same when it is repeated, and the shards are sent to them. If one of them is killed, its shard is done again
    by another one; for a shard on which three are killed the map raises ValueError.
    """
    engine, count = setting("engine") or "local", min(most, available_workers())
    if engine not in ENGINES:
        raise ValueError(f"{variable('engine')}: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if most > 1 and engine in _CLUSTERS:
        with _CLUSTERS[engine](count, ATTEMPTS) as ordered_map:
            yield ordered_map
    elif count > 1:
        with scripts_on_path(), ExitStack() as stack:
            workers = [_Worker() for _ in range(count)]
            for worker in workers:
                stack.callback(worker.kill)
            yield partial(_ordered_map, workers)
    else:
        yield map


class _Worker:
    """A process that answers one request at a time, and is started anew if it was killed."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()  # so that the end of the process ends the pipe

    def send(self, *request: object) -> None:
        """Begin a shard."""
        try:
            self.pipe.send(request)
        except OSError:  # it was killed
            self.kill()
            self._start()
            self.pipe.send(request)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Answer (function, shard) with (result, None) or (None, error)."""
    die_with_parent()
    while True:
        function, shard = pipe.recv()
        try:
            pipe.send((function(shard), None))
        except Exception as error:
            pipe.send((None, sendable(error)))


class _Task(NamedTuple):
    """A shard that a process works on."""

    number: int
    shard: object
    attempt: int
    worker: _Worker


def _ordered_map(workers: list[_Worker], function: Callable[[Any], Any], shards: Iterable[Any]) -> Iterator[Any]:
    waiting, idle = enumerate(shards), deque(workers)
    running: dict[Connection, _Task] = {}
    finished: dict[int, tuple[Any, Exception | None]] = {}
    given = 0

    def begin(task: _Task) -> None:
        task.worker.send(function, task.shard)
        running[task.worker.pipe] = task

    try:
        while True:
            while idle and len(running) + len(finished) < AHEAD * len(workers) and (following := next(waiting, None)):
                begin(_Task(*following, attempt=1, worker=idle.popleft()))
            if not running:
                return
            ready = wait(running)
            for pipe in [pipe for pipe in running if pipe in ready]:
                task = running.pop(pipe)
                try:
                    finished[task.number] = pipe.recv()
                    idle.append(task.worker)
                except (EOFError, OSError):
                    if task.attempt == ATTEMPTS:
                        raise ValueError(KILLED.format(task.shard, ATTEMPTS, LESS_AT_ONCE)) from None
                    task.worker.kill()
                    begin(task._replace(attempt=task.attempt + 1))
            while given in finished:
                result, error = finished.pop(given)
                if error:
                    raise error
                yield result
                given += 1
    finally:
        for task in running.values():  # their answers are no longer wanted, and are not those of the next map
            task.worker.kill()
