"""The runs of the repository in which the server was started: their listing, training curves and reports."""

import asyncio
import csv
import json
import math
import os
import re
import signal
import sys
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryFile
from time import time
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.git_runs import git_states
from chatmill.app.server.run_files import RunFiles
from chatmill.app.server.run_rows import REPORT, RunRow, run_rows
from chatmill.pipeline.processes import SOURCE_ROOT
from chatmill.report.sections import downsample

DVC_TIMEOUT_SECONDS = 120  # DVC takes half a second for a run that is not in its cache
MAX_DVC_BYTES = 64 << 20  # of DVC's output, about 20 kB a run
MAX_RUNS = 500  # in the listing
MAX_BASELINES = 100  # commits whose experiments are listed, beside the branches
MAX_FILE_BYTES = 16 << 20  # of a report or a curve
CURVE = Path("data/metrics/train.tsv")
DVC_PROGRAM = f"""
import sys
sys.path.append({SOURCE_ROOT!r})
from chatmill.pipeline.processes import die_with_parent
die_with_parent()
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""  # DVC's program, which ends with the server, even if that is killed
COLUMNS = ("validation_bits_per_byte", "bits_per_byte")  # of the training curve
EXPERIMENT = re.compile(r"^refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/", re.MULTILINE)
SANDBOX = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


class Runs:
    """The runs of a folder, listed on request by one process at a time."""

    def __init__(self, folder: Path | None) -> None:
        """Nothing is read before the first request; without a folder there are no runs."""
        self.ticket = token_urlsafe(16)  # gives access to reports, as a link cannot carry the API key
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._early = asyncio.Event()  # set when an early listing can be given
        self._rows: dict[str, RunRow] = {}
        self._files: RunFiles | None = None
        self._read_lock = asyncio.Lock()

    async def listing(self, refresh: bool = False, *, early: bool = False) -> dict[str, Any]:
        """All runs, or why they cannot be listed; `refresh` lists them again.

        An early listing has what is known in a second: the rows of the listing before, or those that git has.
        """
        if self._listing is None or (refresh and self._listing.done()):
            self._early.clear()
            self._listing = asyncio.create_task(self._list())
        if early:
            await self._early.wait()
            if not self._listing.done():
                return self._described(None, [], is_complete=False)
        return await asyncio.shield(self._listing)

    def model_names(self) -> list[str]:
        """The names of the runs in the latest listing whose models can be loaded."""
        return [name for name, run in self._rows.items() if run["model"]]

    async def report(self, name: str) -> bytes | None:
        """The report of a run in the latest listing; None if there is none."""
        return await self._read(name, REPORT / "index.html")

    async def curve(self, name: str) -> dict[str, list[list[float]]] | None:
        """Downsampled (step, bits per byte) points of each column of the curve; None if there is no such run."""
        content = await self._read(name, CURVE)
        return points((content or b"").decode("utf-8", "replace")) if name in self._rows else None

    async def _list(self) -> dict[str, Any]:
        problem, notes = None, []
        try:
            if self._folder is None:
                raise ValueError("this server was started without a folder of runs")
            shown = asyncio.create_task(exp_show(self._folder))
            await self._list_early(self._folder)
            rows = await asyncio.to_thread(self._make_rows, await shown, self._folder)
            self._rows = {run["name"]: run for run in rows[:MAX_RUNS]}
            if len(rows) > MAX_RUNS:
                notes.append(f"{len(rows) - MAX_RUNS:,} older runs are not shown: at most {MAX_RUNS} are listed.")
        except ValueError as error:
            problem = str(error)  # the runs of the listing before remain
        finally:
            self._early.set()
        return self._described(problem, notes, is_complete=True)

    async def _list_early(self, folder: Path) -> None:
        """List what git has, unless there is a listing from before."""
        if not self._rows:
            with suppress(ValueError):  # the complete listing says why
                states = await asyncio.to_thread(git_states, folder, MAX_RUNS)
                rows = await asyncio.to_thread(self._make_rows, states, folder)
                self._rows = {run["name"]: run for run in rows[:MAX_RUNS]}
        self._early.set()

    def _make_rows(self, states: list[dict[str, Any]], folder: Path) -> list[RunRow]:
        self._files = RunFiles(folder)
        return run_rows(states, folder, self._files)

    def _described(self, problem: str | None, notes: list[str], *, is_complete: bool) -> dict[str, Any]:
        runs = list(self._rows.values())
        result = {"runs": runs, "problem": problem, "notes": notes, "ticket": self.ticket, "read": time()}
        return result | {"complete": is_complete}

    async def _read(self, name: str, output: Path) -> bytes | None:
        run = self._rows.get(name)
        if run is None or self._files is None or run["state"] in ("queued", "failed"):
            return None
        async with self._read_lock:
            return await asyncio.to_thread(self._files.read, run["rev"], output, MAX_FILE_BYTES)


async def exp_show(folder: Path) -> list[dict[str, Any]]:
    """The output of `dvc exp show`: workspace, branches and experiments. Raises ValueError with DVC's message."""
    revisions = [part for revision in await baselines(folder) for part in ("--rev", revision)]
    command = [sys.executable, "-P", "-c", DVC_PROGRAM, "exp", "show", "--json", "--all-branches", "--rev", "HEAD"]
    status, output, errors = await run_program([*command, *revisions], folder)
    if status:
        lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
        why = lines[0] if lines else errors.strip().rpartition("\n")[2]
        raise ValueError(f"`dvc exp show`, which lists the runs of a project under git and DVC, failed: {why}")
    try:
        states: list[dict[str, Any]] = json.loads(output)
    except ValueError as error:
        raise ValueError(f"`dvc exp show --json` printed no JSON ({error}): run it in a terminal") from error
    return states


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


def points(table: str) -> dict[str, list[list[float]]]:
    """Downsampled (step, value) points of COLUMNS in a table with tabs; rows without numbers are left out."""
    columns: dict[str, list[tuple[float, float]]] = {name: [] for name in COLUMNS}
    for line in csv.DictReader(table.splitlines(), delimiter="\t"):
        for name, column in columns.items():
            try:
                step, value = float(line["step"]), float(line.get(name) or "nan")
            except (ValueError, TypeError, KeyError):
                continue
            if math.isfinite(step) and math.isfinite(value):
                column.append((step, value))
    return {name: [list(point) for point in downsample(column)] for name, column in columns.items() if column}


def routes(runs: Runs) -> list[Route]:
    """The routes of the listing, the training curves and the reports."""

    async def listing(request: Request) -> Response:
        given = request.query_params
        return JSONResponse(await runs.listing("refresh" in given, early="early" in given))

    async def curve(request: Request) -> Response:
        name = request.path_params["name"]
        columns = await runs.curve(name)
        if columns is None:
            raise ApiError(404, f"{name:.200}: no such run: see /runs.json", code="no_run")
        return JSONResponse(columns)

    async def report(request: Request) -> Response:
        if not compare_digest(request.query_params.get("ticket", "").encode(), runs.ticket.encode()):
            raise ApiError(403, "the link is from an earlier start of the server: open /runs", code="bad_ticket")
        content = await runs.report(request.path_params["name"])
        if content is None:
            message = f"{request.path_params['name']:.200}: there is no report on this machine"
            raise ApiError(404, message, code="no_report")
        return Response(content, media_type="text/html", headers=SANDBOX)

    return [
        Route("/runs.json", listing),
        Route("/runs/{name:path}/curve.json", curve),
        Route("/runs/{name:path}/report", report),
    ]
