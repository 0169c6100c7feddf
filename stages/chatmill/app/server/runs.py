"""The runs page: the listing of runs, their curves and reports, and verdicts on them."""

import asyncio
import csv
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_urlsafe
from time import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatmill.app.runs import CURVE, REPORT, RunFiles, RunRow, list_states, run_rows
from chatmill.app.server.requests import read_body
from chatmill.app.server.security import ApiError, CancellableResponse, send_events
from chatmill.app.verdict import views
from chatmill.app.verdict.verdict import Run
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.sections import downsample

# The runs of the repository in which the server was started: their listing, training curves and reports.

MAX_RUNS = 500  # in the listing
MAX_FILE_BYTES = 16 << 20  # of a report or a curve
COLUMNS = ("validation_bits_per_byte", "bits_per_byte")  # of the training curve
SANDBOX = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


Points = dict[str, list[list[float]]]  # (step, value) by column


class Runs:
    """The runs of a folder, listed on request."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read before the first request."""
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._rows: dict[str, RunRow] = {}
        self._files: RunFiles | None = None
        self._read_lock = asyncio.Lock()

    async def listing(self, refresh: bool = False) -> dict[str, Any]:
        """All runs, or why they cannot be listed; `refresh` lists them again."""
        if self._listing is None or (refresh and self._listing.done()):
            self._listing = asyncio.create_task(self._list())
        return await asyncio.shield(self._listing)

    def model_names(self) -> list[str]:
        return [name for name, run in self._rows.items() if run["model"]]

    async def report(self, name: str) -> bytes | None:
        """The report of a run in the latest listing; None if there is none."""
        return await self._read(name, REPORT / "index.html")

    async def curve(self, name: str) -> Points | None:
        """Downsampled (step, bits per byte) points of each column of the curve; None if there is no such run."""
        if name not in self._rows:
            return None
        return points((await self._read(name, CURVE) or b"").decode("utf-8", "replace"))

    async def _list(self) -> dict[str, Any]:
        problem, notes = None, []
        try:
            self._files, rows = await asyncio.to_thread(_read_rows, self._folder)
            self._rows = {run["name"]: run for run in rows[:MAX_RUNS]}
            if len(rows) > MAX_RUNS:
                notes.append(f"Older runs are not shown: at most {MAX_RUNS} are listed.")
        except ValueError as error:
            problem = str(error)  # the runs listed before stay
        shown = [run for run in self._rows.values() if not run["is_copy"]]
        return {"runs": shown, "problem": problem, "notes": notes, "read": time()}

    async def _read(self, name: str, output: Path) -> bytes | None:
        run = self._rows.get(name)
        if run is None or self._files is None:
            return None
        async with self._read_lock:
            return await asyncio.to_thread(self._files.read, run["rev"], output, MAX_FILE_BYTES)


def _read_rows(folder: Path) -> tuple[RunFiles, list[RunRow]]:
    files = RunFiles(folder)
    return files, run_rows(list_states(folder, MAX_RUNS), folder, files)


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

    async def listing(request: Request) -> Response:
        return JSONResponse(await runs.listing("refresh" in request.query_params))

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


# Verdicts on runs: which of two models, or of two groups that differ by their seed alone, is the better one.

TEST_DATA = Path("data/chat/test.jsonl")
MAX_SIDES, MAX_NAMES = 4, 12  # of a request
MAX_PAGES = 20  # that are kept
LOGGER = logging.getLogger("uvicorn.error")


class _Stopped(Exception):
    """Nobody waits for the verdict any more."""


class Verdicts:
    """Verdicts on the runs of a listing, given one at a time; their pages are kept for a while."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs, self._folder = runs, folder
        self._executor = ThreadPoolExecutor(1, "verdict")
        self._pages: dict[str, bytes] = {}

    def page(self, number: str) -> bytes | None:
        return self._pages.get(number)

    def check(self, sides: Any) -> list[list[str]]:
        """The names of runs by side. Raises ApiError for what is none, and where there are no models or data."""
        is_list = isinstance(sides, list) and all(isinstance(side, list) and side for side in sides)
        names = [name for side in sides for name in side] if is_list else []
        if not is_list or not 2 <= len(sides) <= MAX_SIDES or len(names) > MAX_NAMES:
            raise ApiError(400, f"sides: expected 2 to {MAX_SIDES} lists of at most {MAX_NAMES} runs together")
        known = self.runs.model_names()
        if unknown := [name for name in names if name not in known]:
            raise ApiError(404, f"{unknown[0]!s:.200}: no such run with a model here: see /runs.json", code="no_run")
        if not (self._folder / TEST_DATA).exists():
            raise ApiError(409, f"{TEST_DATA}, on which runs are compared, is not here: run `dvc pull` or `dvc repro`")
        return [list(map(str, side)) for side in sides]

    async def events(self, sides: list[list[str]]) -> AsyncIterator[bytes]:
        """Each run when it was measured, then the verdict or why there is none, as JSON."""
        names: asyncio.Queue[str | None] = asyncio.Queue()
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        def measured(run: Run) -> None:
            if stopped.is_set():
                raise _Stopped
            loop.call_soon_threadsafe(names.put_nowait, run.name)

        judging = loop.run_in_executor(self._executor, self._judge, sides, measured)
        judging.add_done_callback(lambda _: names.put_nowait(None))
        try:
            while name := await names.get():
                yield json.dumps({"measured": name}).encode()
            if error := judging.exception():
                LOGGER.error("a verdict failed", exc_info=error)
                problem = f"the comparison failed ({type(error).__name__}): the server's log has more"
                yield json.dumps({"problem": problem}).encode()
            else:
                yield json.dumps(judging.result()).encode()
        finally:
            stopped.set()

    def _judge(self, sides: Sequence[Sequence[str]], measured: Callable[[Run], None]) -> dict[str, Any]:
        try:
            verdict = views.compare_sides(sides, measured, self._folder / TEST_DATA)
        except _Stopped:
            return {}
        except USER_ERRORS as error:
            return {"problem": error_line(error)}
        number = token_urlsafe(8)
        self._pages[number] = views.page(verdict).encode()
        for oldest in list(self._pages)[:-MAX_PAGES]:
            del self._pages[oldest]
        sentences = {"sentences": verdict.sentences, "heads": verdict.heads, "note": verdict.note}
        return {**sentences, "number": number}


def verdict_routes(verdicts: Verdicts) -> list[Route]:
    async def judge(request: Request) -> Response:
        try:
            body = json.loads(await read_body(request))
        except ValueError as error:
            raise ApiError(400, f"the body is no JSON: {error}") from error
        sides = verdicts.check(body.get("sides") if isinstance(body, dict) else None)
        return CancellableResponse(lambda send: send_events(send, verdicts.events(sides)))

    async def page(request: Request) -> Response:
        content = verdicts.page(request.path_params["number"])
        if content is None:
            raise ApiError(404, "this verdict is not kept any more: ask for it again on /runs", code="no_verdict")
        return Response(content, media_type="text/html", headers=SANDBOX)

    return [Route("/runs/verdict", judge, methods=["POST"]), Route("/runs/verdicts/{number}/report", page)]
