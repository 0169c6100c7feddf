"""Work on shards by the nodes of a Slurm cluster, as arrays of jobs that submitit writes and submits."""

import os
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.processes import SOURCE_ROOT, is_alive
from chatmill.pipeline.settings import setting, variable
from chatmill.shards.worker_errors import KILLED, sendable

OPTIONS = variable("slurm")
_COMMANDS = ("sbatch", "srun", "sacct", "scancel")
_OWN_OPTIONS = ("array", "error", "nodes", "ntasks", "ntasks-per-node", "output")
_DEFAULTS = {"job_name": "chatmill", "time": "01:00:00"}
_JOBS_FOR_EACH = 4  # process: fewer jobs wait for the last one, more of them spend their time on starting
_MOST_JOBS = 1000  # of an array, by the default of Slurm
_LOOK_SECONDS, _ENDS_SECONDS = 0.2, 1  # between looks for results, and for jobs that have ended
_STATE_SECONDS = 30  # between questions for the states of jobs, of which the first come sooner
_VISIBLE_SECONDS = 15  # until a network drive shows what an ended job has written

Shards = list[tuple[int, Any]]  # with their numbers


@contextmanager
def started(count: int, attempts: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over jobs of Slurm, `count` at once, on nodes that see this folder and Python at the same paths.

    `attempts` is how often a shard is begun whose jobs are killed. The results come as files, so that their size is
    bounded by the disk alone. $CHATMILL_SLURM has options of sbatch.
    """
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise ValueError("CHATMILL_ENGINE is slurm, which needs submitit: pip install -e '.[scale]'") from error
    options = _DEFAULTS | _options(setting("slurm") or "")
    _check_commands()
    submitit.SlurmJob.watcher = type(submitit.SlurmJob.watcher)(delay_s=_STATE_SECONDS)
    parent = Path(SCRATCH, "slurm").absolute()
    parent.mkdir(parents=True, exist_ok=True)
    _discard_stale(parent)
    with ExitStack() as stack:
        stack.callback(_remove_empty, parent)
        yield partial(_ordered_map, stack, parent, count, attempts, options)


def _options(text: str) -> dict[str, str]:
    """{"partition": "cpu", "exclude": "node1,node2"} of "partition=cpu,exclude=node1,node2". Raises ValueError."""
    options = {}
    for part in re.split(r",(?=[a-z-]+=)", text) if text else ():
        name, _, value = part.partition("=")
        if not (re.fullmatch("[a-z-]+", name) and value.strip()):
            raise ValueError(f"{OPTIONS}: expected options of sbatch, as partition=cpu,time=02:00:00, got {part!r}")
        if name in _OWN_OPTIONS:
            raise ValueError(f"{OPTIONS}: expected none of {', '.join(_OWN_OPTIONS)}, got {part!r}")
        options[name.replace("-", "_")] = value
    return options


def _check_commands() -> None:
    """Raise ValueError where Slurm is not installed, or does not record how jobs end."""
    if missing := [command for command in _COMMANDS if not shutil.which(command)]:
        raise ValueError(f"CHATMILL_ENGINE is slurm, whose {missing[0]} is not on the PATH: run this on a login node")
    accounting = subprocess.run(["sacct", "--noheader", "--jobs=1"], capture_output=True, text=True)
    if accounting.returncode:
        raise ValueError(f"CHATMILL_ENGINE is slurm, whose sacct fails: {_last_line(accounting.stderr)}")


@dataclass
class _Task:
    """Consecutive shards that one job works on."""

    shards: Shards
    job: Any
    place: int = -1  # of the shard at which it was killed last
    kills: int = 0  # there
    seen: float | None = None  # when the end of the job was
    ended: bool = False
    failure: Exception | None = None


def _ordered_map(
    stack: ExitStack,
    parent: Path,
    count: int,
    attempts: int,
    options: dict[str, str],
    function: Callable[[Any], Any],
    shards: Iterable[Any],
) -> Iterator[Any]:
    numbered: Shards = list(enumerate(shards))
    if not numbered:
        return
    folder = Path(mkdtemp(prefix=f"{socket.gethostname()}-{os.getpid()}-", dir=parent))
    with ExitStack() as own:
        own.callback(_discard, folder)
        stack.callback(_discard, folder)  # where this generator is not closed
        jobs = _Jobs(folder, count, attempts, options, partial(_work, Path.cwd(), folder, function))
        for task in jobs.submit(numbered):
            for number, _ in task.shards:
                jobs.wait(task, number)
                file = _result(folder, number)
                result, error = pickle.loads(file.read_bytes())
                os.truncate(file, 0)  # it remains, as a job that is queued again goes on after it
                if error:
                    raise error
                yield result
        jobs.wait_for_ends()
        shutil.rmtree(folder, ignore_errors=True)  # here, as there is nothing to cancel


class _Jobs:
    """The jobs of a map."""

    def __init__(
        self, folder: Path, count: int, attempts: int, options: dict[str, str], work: Callable[[Shards], None]
    ) -> None:
        import submitit

        paths = os.pathsep.join([SOURCE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.folder, self.count, self.attempts, self.work = folder, count, attempts, work
        self.executor = submitit.SlurmExecutor(folder)
        self.executor.update_parameters(
            array_parallelism=count,
            additional_parameters=options,
            setup=[f"export PYTHONPATH={shlex.quote(paths)}"],
        )
        self.tasks: list[_Task] = []
        self.looked = 0.0

    def submit(self, shards: Shards) -> list[_Task]:
        """Submit an array of jobs for all shards."""
        most = min(len(shards), _JOBS_FOR_EACH * self.count, _MOST_JOBS)
        bounds = [len(shards) * part // most for part in range(most + 1)]
        parts = [shards[start:end] for start, end in pairwise(bounds)]
        self.tasks = [_Task(*pair) for pair in zip(parts, self._submitted(parts), strict=True)]
        return self.tasks

    def wait(self, task: _Task, number: int) -> None:
        """Wait for the result of a shard of a task. Raises what kept the task from it."""
        while not _result(self.folder, number).exists():
            if task.failure:
                raise task.failure
            self._look()

    def wait_for_ends(self) -> None:
        """Wait until the jobs have ended, all results of which are there."""
        while not all(task.ended or _has_ended(task) for task in self.tasks):
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        """Wait a moment, and submit the jobs again that were killed."""
        time.sleep(_LOOK_SECONDS)
        self.folder.chmod(self.folder.stat().st_mode)  # or a network drive does not show what is new
        if time.monotonic() < self.looked + _ENDS_SECONDS:
            return
        killed = [task for task in self.tasks if not (task.ended or task.failure) and self._is_killed(task)]
        if killed:
            _cancel(task.job.job_id for task in killed)  # as Slurm may have queued them again
            for task, job in zip(killed, self._submitted([task.shards for task in killed]), strict=True):
                task.job, task.seen = job, None
        self.looked = time.monotonic()

    def _is_killed(self, task: _Task) -> bool:
        """Whether the job of a task was killed, and may be submitted again; notes any other end."""
        from submitit.core.utils import FailedJobError

        if not _has_ended(task):
            return False
        task.seen = task.seen or time.monotonic()
        missing = [shard for shard in task.shards if not _result(self.folder, shard[0]).exists()]
        if not missing:
            task.ended = True
        elif task.job.paths.result_pickle.exists():
            if isinstance(error := task.job.exception(), FailedJobError):
                trace = str(error).split("-" * 22)[1]
                task.failure = ValueError(f"{missing[0][1]}: job {task.job.job_id} of Slurm: {_last_line(trace)}")
        elif time.monotonic() >= task.seen + _VISIBLE_SECONDS:
            self._count_kill(task, *missing[0])
            return not task.failure
        return False

    def _count_kill(self, task: _Task, place: int, shard: object) -> None:
        state = task.job.state
        task.place, task.kills = place, task.kills + 1 if task.place == place else 1
        if state.startswith("CANCELLED"):
            task.failure = ValueError(f"{shard}: job {task.job.job_id} of Slurm was cancelled")
        elif task.kills == self.attempts:
            log = _last_line(task.job.stderr() or "nothing in its log")
            remedy = f"Slurm's state is {state} ({log}): set {OPTIONS}, as mem=8G,time=04:00:00"
            task.failure = ValueError(KILLED.format(shard, self.attempts, remedy))

    def _submitted(self, parts: list[Shards]) -> list[Any]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import clean_env

        try:
            with clean_env():
                return list(self.executor.map_array(self.work, parts))
        except (FailedJobError, FailedSubmissionError) as error:
            raise ValueError(f"sbatch: {' '.join(str(error).split())}") from error


def _work(place: Path, folder: Path, function: Callable[[Any], Any], shards: Shards) -> None:
    """Write files of the results of those shards that have none, each as (result, None) or (None, error)."""
    from submitit.core.utils import cloudpickle_dump

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a cancelled job ends at once
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # sent by Slurm before the time limit
    os.chdir(place)
    for number, shard in shards:
        file = _result(folder, number)
        if file.exists():
            continue
        part = file.with_suffix(f".{os.environ['SLURM_JOB_ID']}")
        try:
            cloudpickle_dump((function(shard), None), part)
        except Exception as error:
            cloudpickle_dump((None, sendable(error)), part)
        part.replace(file)


def _has_ended(task: _Task) -> bool:
    return bool(task.job.done() or task.job.state == "PREEMPTED")  # which submitit takes for queued again


def _result(folder: Path, number: int) -> Path:
    return folder / f"{number}.result"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1].strip()


def _cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs and arrays, but those that have ended, of which scancel complains."""
    if numbers := sorted(jobs):
        subprocess.run(["scancel", *numbers], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _discard(folder: Path) -> None:
    """Cancel the jobs of a folder, and remove it."""
    if not folder.exists():
        return
    _cancel(file.name.partition("_")[0] for file in folder.glob("*_submission.sh"))
    shutil.rmtree(folder, ignore_errors=True)


def _discard_stale(parent: Path) -> None:
    """Discard what processes of this machine have left that were killed."""
    for folder in parent.iterdir():
        host, process, _ = folder.name.rsplit("-", 2)
        with suppress(FileNotFoundError):  # another stage may do the same
            if host == socket.gethostname() and not is_alive(int(process), folder.stat().st_mtime):
                _discard(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # another stage uses it
        folder.rmdir()
