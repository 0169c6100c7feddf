"""Work on shards, the parts of large files, by several processes, whose number changes no byte of what is made."""

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.pipeline.processes import die_with_parent, scripts_on_path

OrderedMap = Callable[..., Iterable[Any]]  # as `map` over one iterable

SHARD_BYTES = 16_000_000
VARIABLE = "CHATMILL_WORKERS"
_ATTEMPTS = 3  # of a shard, whose process was killed
_AHEAD = 2  # shards for each process that are begun or wait for those before them, which bounds the memory


class FileRange(NamedTuple):
    """The lines of a file that start in [start, end)."""

    file: Path
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.end:,}"

    def lines(self) -> Iterator[bytes]:
        """The lines, each complete."""
        with self.file.open("rb") as stream:
            stream.seek(max(self.start - 1, 0))
            position = self.start - 1 + len(stream.readline()) if self.start else 0
            while position < self.end and (line := stream.readline()):
                position += len(line)
                yield line


def shards_of(file: Path, size: int = SHARD_BYTES) -> list[FileRange]:
    """The parts of a file, of `size` bytes at most."""
    end = file.stat().st_size
    return [FileRange(file, start, min(start + size, end)) for start in range(0, end, size)]


def available_workers() -> int:
    """The number of processes that may work at once: $CHATMILL_WORKERS, or that of this process's processors.

    Raises ValueError for a value that is no number from 1.
    """
    if text := os.environ.get(VARIABLE):
        if not (text.isdecimal() and int(text)):
            raise ValueError(f"{VARIABLE}: expected a number of processes from 1, got {text!r}")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_pool(count: int) -> Iterator[OrderedMap]:
    """A `map` over this number of processes that preserves the order of results.

    The function, which must do the same when it is repeated, and the shards are sent to the processes. If one of these
    is killed, its shard is done again by a new one; for a shard on which three are killed the map raises ValueError.
    """
    if count < 2:
        yield map
        return
    with scripts_on_path(), ExitStack() as stack:
        workers = [_Worker() for _ in range(count)]
        for worker in workers:
            stack.callback(worker.kill)
        yield partial(_ordered_map, workers)


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
        except OSError:  # it was killed while it had nothing to do
            self.restart()
            self.pipe.send(request)

    def restart(self) -> None:
        self.kill()
        self._start()

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
            error.add_note(traceback.format_exc())
            pipe.send((None, error))


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

    while True:
        while idle and len(running) + len(finished) < _AHEAD * len(workers) and (following := next(waiting, None)):
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
                if task.attempt == _ATTEMPTS:
                    raise ValueError(
                        f"{task.shard}: {_ATTEMPTS} processes that worked on it were killed, as for want of memory: "
                        f"set {VARIABLE} to fewer processes"
                    ) from None
                task.worker.restart()
                begin(task._replace(attempt=task.attempt + 1))
        while given in finished:
            result, error = finished.pop(given)
            if error:
                raise error
            yield result
            given += 1
