"""Work on shards by the processes of a Ray cluster, or by those that Ray starts on this machine."""

import logging
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chatmill.pipeline.processes import SOURCE_ROOT
from chatmill.pipeline.settings import SettingName, setting, variable
from chatmill.pipeline.user_errors import error_line
from chatmill.shards.worker_errors import KILLED, LESS_AT_ONCE, sendable

_LESS_AT_ONCE = "give the cluster's machines fewer processors (`ray start --num-cpus`), or more memory"
_CONNECT_SECONDS = 5
_AHEAD = 2  # shards for each processor that are begun or wait for those before them, which bounds the memory


@contextmanager
def started(count: int, attempts: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over the cluster at $RAY_ADDRESS, whose machines see this folder at the same path, or `count` processes.

    `attempts` is how often a shard is begun whose processes are killed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError("CHATMILL_ENGINE is ray, which is not installed: pip install -e '.[scale]'") from error
    address = os.environ.get("RAY_ADDRESS")
    _check(address)
    paths = [SOURCE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else count,
            include_dashboard=None if address else False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)} | _settings()},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except ConnectionError as error:
        expected = "expected the same version of Ray there, and its token where it asks for one (RAY_AUTH_MODE=token)"
        raise ValueError(f"RAY_ADDRESS: {error}: {expected}") from error
    try:
        yield partial(_ordered_map, ray, attempts, _LESS_AT_ONCE if address else LESS_AT_ONCE)
    finally:
        ray.shutdown()


def _settings() -> dict[str, str]:
    """The settings that workers need, as variables: those of the cluster's processes may be others."""
    names: tuple[SettingName, ...] = ("store", "store_cache_gb")
    found = {variable(name): setting(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _check(address: str | None) -> None:
    """Raise ValueError if nothing answers at `host:port`, which Ray would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(f"RAY_ADDRESS: no cluster answers at {address}: {error_line(error)}") from error


def _ordered_map(
    ray: Any, attempts: int, remedy: str, function: Callable[[Any], Any], shards: Iterable[Any]
) -> Iterator[Any]:
    work, shared = ray.remote(max_retries=attempts - 1)(_in_folder), ray.put(function)
    limit = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    begun: deque[tuple[Any, Any]] = deque()
    for shard in shards:
        begun.append((shard, work.remote(Path.cwd(), shared, shard)))
        if len(begun) == limit:
            yield _result(ray, attempts, remedy, *begun.popleft())
    while begun:
        yield _result(ray, attempts, remedy, *begun.popleft())


def _result(ray: Any, attempts: int, remedy: str, shard: object, result: object) -> Any:
    try:
        return pickle.loads(ray.get(result))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        raise ValueError(KILLED.format(shard, attempts, remedy)) from error
    except ray.exceptions.RayError as error:
        raise ValueError(f"{shard}: Ray: {' '.join(str(error).split())}") from error


def _in_folder(folder: Path, function: Callable[[Any], Any], shard: object) -> bytes:
    """The result of a shard, of which paths are relative to the folder; pickled, since Ray's arrays are read-only."""
    from ray import cloudpickle

    os.chdir(folder)
    try:
        return bytes(cloudpickle.dumps(function(shard)))
    except Exception as error:
        raise sendable(error) from None
