"""A stand-in for Slurm, whose jobs are processes of this machine.

Its commands are links to this file, by whose names it knows what to do; they run without the packages of the tests.
The file of a job in the folder $STAND_IN_SLURM holds its state, and the process number of one that runs. The state of
one that fails is $STAND_IN_FAILED.
"""

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")


def _install(folder):
    """The folder of the commands."""
    (folder / "bin").mkdir(parents=True)
    (folder / "jobs").mkdir()
    for command in COMMANDS:
        file = folder / "bin" / command
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).resolve()} {command} "$@"\n')
        file.chmod(0o755)
    return folder / "bin"


def start(folder, monkeypatch):
    """Put the stand-in on the PATH of a test, whose working folder becomes `folder`."""
    monkeypatch.setenv("PATH", f"{_install(folder / 'slurm')}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_SLURM", str(folder / "slurm"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("CHATMILL_ENGINE", "slurm")
    monkeypatch.setattr("chatmill.shards.slurm_engine._VISIBLE_SECONDS", 0)  # no network drive
    monkeypatch.chdir(folder)


def final_states():
    """The states by which all jobs have ended, by their number, such as 1_3."""
    for _ in range(300):
        with _jobs() as jobs:
            states = {file.name: file.read_text().split()[0] for file in jobs.iterdir()}
        if not {"PENDING", "RUNNING"} & set(states.values()):
            return states
        time.sleep(0.1)
    raise TimeoutError(states)


@contextmanager
def _jobs():
    """The folder of jobs, which this process alone changes."""
    folder = Path(os.environ["STAND_IN_SLURM"])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "jobs"


def _sbatch(script):
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", Path(script).read_text(), re.M))
    options = {name: shlex.split(value)[0] for name, value in options.items()}
    if options.get("partition") == "closed":
        sys.exit("sbatch: error: invalid partition specified: closed")
    with _jobs() as jobs:
        number = 1 + max((int(file.name.partition("_")[0]) for file in jobs.iterdir()), default=0)
        names = [str(number)]
        if "array" in options:
            first, last = map(int, options["array"].partition("%")[0].split("-"))
            names = [f"{number}_{task}" for task in range(first, last + 1)]
        for name in names:
            (jobs / name).write_text("PENDING")
    copy = jobs.parent / f"{number}.sh"
    shutil.copy(script, copy)
    (jobs.parent / "options").open("a").write(f"{shlex.join(f'{name}={options[name]}' for name in options)}\n")
    limit = options.get("array", "").partition("%")[2] or "1"
    logs = options["output"], options["error"]
    subprocess.Popen(
        [sys.executable, "-S", __file__, "control", copy, limit, *logs, *names],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {number}")


def _control(script, limit, output, error, *names):
    """Run the jobs of an array, `limit` at once."""
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < int(limit):
            name = waiting.pop(0)
            with _jobs() as jobs:
                if (jobs / name).read_text() == "PENDING":
                    running[name] = _start(script, name, output, error)
                    (jobs / name).write_text(f"RUNNING {running[name].pid}")
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            with _jobs() as jobs:
                if (jobs / name).read_text().startswith("RUNNING"):
                    (jobs / name).write_text(os.environ.get("STAND_IN_FAILED", "FAILED") if code else "COMPLETED")
        time.sleep(0.02)


def _start(script, name, output, error):
    number, _, task = name.partition("_")
    job = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "node1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    if task:
        job |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task}
    with open(_named(output, number, task), "a") as out, open(_named(error, number, task), "a") as errors:
        return subprocess.Popen(
            ["bash", script], env=os.environ | job, start_new_session=True, stdout=out, stderr=errors
        )


def _named(file, number, task):
    """The name of a log by its pattern."""
    values = {"%A": number, "%a": task, "%j": f"{number}_{task}" if task else number, "%t": "0"}
    return re.sub("%[Aajt]", lambda found: values[found[0]], file)


def _srun(*arguments):
    command, number, task = list(arguments), os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID", "")
    while command[0].startswith("--"):
        option = command.pop(0)
        if option in ("--output", "--error"):
            stream = os.open(_named(command.pop(0), number, task), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(stream, 1 if option == "--output" else 2)
    os.execvp(command[0], command)


def _sacct(*arguments):
    if (Path(os.environ["STAND_IN_SLURM"]) / "no accounting").exists():
        sys.exit("Slurm accounting storage is disabled")
    asked = {number for option, number in pairwise(arguments) if option == "-j"}
    print("JobID|State|NodeList")
    with _jobs() as jobs:
        for file in jobs.iterdir():
            if file.name.partition("_")[0] in asked:
                print(f"{file.name}|{file.read_text().split()[0]}|node1")


def _scancel(*asked):
    with _jobs() as jobs:
        for file in jobs.iterdir():
            state, *process = file.read_text().split()
            if {file.name, file.name.partition("_")[0]} & set(asked) and state in ("PENDING", "RUNNING"):
                file.write_text("CANCELLED")
                if process:
                    os.killpg(int(process[0]), signal.SIGTERM)


if __name__ == "__main__":
    {"sbatch": _sbatch, "srun": _srun, "sacct": _sacct, "scancel": _scancel, "control": _control}[sys.argv[1]](
        *sys.argv[2:]
    )
