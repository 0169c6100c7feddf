"""The runs of the repository in which the server was started: their listing, training curves and reports."""

import asyncio
import csv
import math
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatmill.app.runs.dvc_runs import exp_show
from chatmill.app.runs.git_runs import git_states
from chatmill.app.runs.rows import REPORT, RunFiles, RunRow, run_rows
from chatmill.app.server.api_errors import ApiError
from chatmill.report.sections import downsample

MAX_RUNS = 500  # in the listing
MAX_FILE_BYTES = 16 << 20  # of a report or a curve
CURVE = Path("data/metrics/train.tsv")
COLUMNS = ("validation_bits_per_byte", "bits_per_byte")  # of the training curve
SANDBOX = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


Points = dict[str, list[list[float]]]  # (step, value) by column


class Runs:
    """The runs of a folder, listed on request by one process at a time."""

    def __init__(self, folder: Path | None) -> None:
        """Nothing is read before the first request; without a folder there are no runs."""
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._early = asyncio.Event()  # set when an early listing can be given
        self._rows: dict[str, RunRow] = {}
        self._files: RunFiles | None = None
        self._read_lock = asyncio.Lock()
        self._live_curves: dict[str, Points] = {}  # by revision, as last read: DVC removes that of a failed run

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
        return [name for name, run in self._rows.items() if run["model"]]

    async def report(self, name: str) -> bytes | None:
        """The report of a run in the latest listing; None if there is none."""
        return await self._read(name, REPORT / "index.html")

    async def curve(self, name: str) -> Points | None:
        """Downsampled (step, bits per byte) points of each column of the curve; None if there is no such run."""
        run = self._rows.get(name)
        if run is None:
            return None
        found = points((await self._read(name, CURVE) or b"").decode("utf-8", "replace"))
        if run["state"] == "running" and found:
            self._live_curves[run["rev"]] = found
        return self._live_curves.get(run["rev"], {}) if run["state"] == "failed" else found

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
        result = {"runs": runs, "problem": problem, "notes": notes, "read": time()}
        return result | {"complete": is_complete}

    async def _read(self, name: str, output: Path) -> bytes | None:
        run = self._rows.get(name)
        if run is None or self._files is None or run["state"] in ("queued", "failed"):
            return None
        read = self._files.read_live if run["state"] == "running" else self._files.read
        async with self._read_lock:
            return await asyncio.to_thread(read, run["rev"], output, MAX_FILE_BYTES)


def points(table: str) -> Points:
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
