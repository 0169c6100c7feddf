"""The runs of a repository as DVC has them, and other commands of DVC, in processes that end with the server."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from chatmill.pipeline.processes import SOURCE_ROOT

DVC_TIMEOUT_SECONDS = 120  # DVC takes half a second for a run that is not in its cache
MAX_DVC_BYTES = 64 << 20  # of DVC's output, about 20 kB a run
MAX_BASELINES = 100  # commits whose experiments are listed, beside the branches
DVC_PROGRAM = f"""
import sys
sys.path.append({SOURCE_ROOT!r})
from chatmill.pipeline.processes import die_with_parent
die_with_parent()
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""  # DVC's program, which ends with the server, even if that is killed
EXPERIMENT = re.compile(r"^refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/", re.MULTILINE)


class DvcError(ValueError):
    """What DVC says that it cannot do."""


async def exp_show(folder: Path) -> list[dict[str, Any]]:
    """The output of `dvc exp show`: workspace, branches and experiments. Raises ValueError with DVC's message."""
    revisions = [part for revision in await baselines(folder) for part in ("--rev", revision)]
    try:
        output = await run_dvc(["exp", "show", "--json", "--all-branches", "--rev", "HEAD", *revisions], folder)
    except DvcError as error:
        message = f"`dvc exp show`, which lists the runs of a project under git and DVC, failed: {error}"
        raise ValueError(message) from error
    try:
        states: list[dict[str, Any]] = json.loads(output)
    except ValueError as error:
        raise ValueError(f"`dvc exp show --json` printed no JSON ({error}): run it in a terminal") from error
    return states


async def run_dvc(arguments: list[str], folder: Path) -> bytes:
    """The output of DVC. Raises DvcError with its message."""
    status, output, errors = await run_program([sys.executable, "-P", "-c", DVC_PROGRAM, *arguments], folder)
    if status:
        lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
        raise DvcError(lines[0] if lines else errors.strip().rpartition("\n")[2])
    return output


async def baselines(folder: Path) -> list[str]:
    """The commits from which experiments were started, the latest experiment's first; none without git."""
    command = ["git", "for-each-ref", "--sort=-creatordate", "--format=%(refname)", "refs/exps"]
    try:
        status, refs, _ = await run_program(command, folder)
    except ValueError:
        return []
    commits = dict.fromkeys("".join(parts) for parts in EXPERIMENT.findall(refs.decode("utf-8", "replace")))
    return [] if status else list(commits)[:MAX_BASELINES]


async def run_program(command: list[str], folder: Path) -> tuple[int, bytes, str]:
    """Exit code, output and errors of a program. Raises ValueError if it takes too long or cannot be started."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # so that Ctrl-C reaches the server alone
            )
        except OSError as error:
            raise ValueError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            await asyncio.wait_for(process.wait(), DVC_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise ValueError(
                f"reading the runs took over {DVC_TIMEOUT_SECONDS} s: "
                "press Refresh to continue; DVC caches what it has read"
            ) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, read_output(output), read_output(errors).decode("utf-8", "replace")


def read_output(stream: IO[bytes]) -> bytes:
    """The output of a program. Raises ValueError if it is too long."""
    if (size := stream.seek(0, os.SEEK_END)) > MAX_DVC_BYTES:
        raise ValueError(
            f"DVC's listing of the runs: expected at most {MAX_DVC_BYTES:,} bytes, got {size:,}: "
            "remove old experiments with `dvc exp remove`"
        )
    stream.seek(0)
    return stream.read()
