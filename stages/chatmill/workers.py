"""Work on parts of files by several processes, or by a Ray cluster; neither changes a byte of what is made.

CHATMILL_WORKERS is the number of processes, by default that of the processors; CHATMILL_ENGINE=ray takes those of the
cluster at RAY_ADDRESS, whose machines see this folder at the same path, or without it those that Ray starts here.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.pipeline.processes import SOURCE_ROOT, die_with_parent, scripts_on_path

OrderedMap = Callable[..., Iterable[Any]]  # as `map` over one iterable: results come in the order of the items
SHARD_BYTES = 16_000_000
AHEAD = 2  # items for each process that are begun or wait for those before them, which bounds the memory
KILLED = "a process that worked on it was killed, as for want of memory: set CHATMILL_WORKERS to fewer"


class FileRange(NamedTuple):
    """The lines of a file that start in [start, end)."""

    file: Path
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.end:,}"

    def lines(self) -> Iterator[bytes]:
        with self.file.open("rb") as stream:
            # From one byte before, so that a line that begins at `start` is not skipped with the rest of another.
            stream.seek(max(self.start - 1, 0))
            position = self.start - 1 + len(stream.readline()) if self.start else 0
            while position < self.end and (line := stream.readline()):
                position += len(line)
                yield line


def shards_of(file: Path, size: int = SHARD_BYTES) -> list[FileRange]:
    end = file.stat().st_size
    return [FileRange(file, start, min(start + size, end)) for start in range(0, end, size)]


@contextmanager
def worker_pool(most: int) -> Iterator[OrderedMap]:
    """A `map` in up to `most` processes; the builtin one, in this process, where a single process would be used.

    Functions and items are pickled. Raises ValueError if CHATMILL_ENGINE or CHATMILL_WORKERS is invalid, and in the
    `map` if a process is killed.
    """
    engine = os.environ.get("CHATMILL_ENGINE", "local")
    if engine not in ("local", "ray"):
        raise ValueError(f"CHATMILL_ENGINE: expected local or ray, got {engine!r}")
    count = min(most, _workers())
    if most > 1 and engine == "ray":
        with _ray(count) as ordered_map:
            yield ordered_map
    elif count > 1:
        context = multiprocessing.get_context("spawn")
        with scripts_on_path(), ProcessPoolExecutor(count, context, die_with_parent) as pool:
            try:
                yield partial(_ordered_map, pool.submit, Future.result, AHEAD * count)
            finally:
                pool.shutdown(cancel_futures=True)
    else:
        yield map


def _workers() -> int:
    if text := os.environ.get("CHATMILL_WORKERS"):
        if not (text.isdecimal() and int(text)):
            raise ValueError(f"CHATMILL_WORKERS: expected a number of processes from 1, got {text!r}")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ordered_map(
    begin: Callable[..., Any],
    result: Callable[[Any], Any],
    limit: int,
    function: Callable[[Any], Any],
    items: Iterable[Any],
) -> Iterator[Any]:
    begun: deque[tuple[Any, Any]] = deque()
    remaining = iter(items)
    while True:
        try:
            for item in islice(remaining, limit - len(begun)):
                begun.append((item, begin(function, item)))
            if not begun:
                return
            item, future = begun.popleft()
            yield result(future)
        except BrokenProcessPool as error:
            raise ValueError(f"{item}: {KILLED}") from error


@contextmanager
def _ray(count: int) -> Iterator[OrderedMap]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError("CHATMILL_ENGINE is ray, which is not installed: pip install -e '.[scale]'") from error
    address = os.environ.get("RAY_ADDRESS")
    paths = [SOURCE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else count,
            include_dashboard=None if address else False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except ConnectionError as error:
        raise ValueError(f"RAY_ADDRESS: {error}: expected a cluster with the same version of Ray") from error

    remote = ray.remote(_in_folder)

    def begin(function: Callable[[Any], Any], item: object) -> Any:
        return remote.remote(Path.cwd(), function, item)

    def result(reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise ValueError(f"Ray: {' '.join(str(error).split())}: {KILLED}") from error

    try:
        yield partial(_ordered_map, begin, result, AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        ray.shutdown()


def _in_folder(folder: Path, function: Callable[[Any], Any], item: object) -> Any:
    os.chdir(folder)
    return function(item)
