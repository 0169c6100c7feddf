"""The runs page: the listing of runs, their curves and reports, and verdicts on them."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_urlsafe
from time import time
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from chatmill.app.runs import CURVE, REPORT, RunFiles, RunRow, State, list_states, run_rows
from chatmill.app.server.requests import parse
from chatmill.app.server.security import ApiError, CancellableResponse, send_events
from chatmill.app.verdict import views
from chatmill.app.verdict.verdict import Run
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.inputs import read_curve
from chatmill.report.sections import downsample

# The runs of the repository in which the server was started: their listing, training curves and reports.

MAX_RUNS = 500  # in the listing
COLUMNS = ("validation_bits_per_byte", "bits_per_byte")  # of the training curve
SANDBOX = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cache-Control": "no-store",  # where a key is needed, a browser is to keep nothing
}


class Runs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._rows: dict[str, RunRow] = {}
        self._states: dict[str, State] = {}  # by name, as the rows
        self._files: RunFiles | None = None

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/runs.json", self.send_listing),
            Route("/runs/{name:path}/curve.json", self.send_curve),
            Route("/runs/{name:path}/report", self.send_report),
        ]

    async def listing(self, refresh: bool = False) -> dict[str, Any]:
        """All runs, or why they cannot be listed; `refresh` lists them again."""
        if self._listing is None or (refresh and self._listing.done()):
            self._listing = asyncio.create_task(asyncio.to_thread(self._list))
        return await asyncio.shield(self._listing)

    def model_names(self) -> list[str]:
        return [name for name, run in self._rows.items() if run["model"]]

    async def send_listing(self, request: Request) -> Response:
        return JSONResponse(await self.listing("refresh" in request.query_params))

    async def send_curve(self, request: Request) -> Response:
        """(step, bits per byte) of each column, downsampled; none if the curve is missing on this machine."""
        name = request.path_params["name"]
        if not self._files or name not in self._states:
            raise ApiError(404, f"{name:.200}: no such run: see /runs.json", code="no_run")
        try:
            curve = await asyncio.to_thread(read_curve, self._files.file(self._states[name], CURVE), strict=False)
        except (OSError, ValueError):
            curve = {}
        return JSONResponse({column: downsample(curve[column]) for column in COLUMNS if column in curve})

    async def send_report(self, request: Request) -> Response:
        name = request.path_params["name"]
        files = self._files.files(self._states[name], REPORT) if self._files and name in self._states else {}
        if "index.html" not in files:
            raise ApiError(404, f"{name:.200}: there is no report on this machine", code="no_report")
        return FileResponse(files["index.html"], media_type="text/html", headers=SANDBOX)

    def _list(self) -> dict[str, Any]:
        problem, notes = None, []
        try:
            files, states = RunFiles(self._folder), list_states(self._folder, MAX_RUNS)
            rows = run_rows(states, self._folder, files)
            by_revision = {state.rev: state for state in states}
            self._files, self._states = files, {run["name"]: by_revision[run["rev"]] for run in rows[:MAX_RUNS]}
            self._rows = {run["name"]: run for run in rows[:MAX_RUNS]}
            if len(rows) > MAX_RUNS:
                notes.append(f"Older runs are not shown: at most {MAX_RUNS} are listed.")
        except ValueError as error:
            problem = str(error)  # the runs listed before stay
        shown = [run for run in self._rows.values() if not run["is_copy"]]
        return {"runs": shown, "problem": problem, "notes": notes, "read": time()}


# Verdicts on runs: which of two models, or of two groups that differ by their seed alone, is the better one.

TEST_DATA = Path("data/chat/test.jsonl")
LOGGER = logging.getLogger("uvicorn.error")
MAX_SIDES, MAX_NAMES = 4, 12  # of a request
MAX_PAGES = 20  # that are kept


class VerdictRequest(BaseModel):
    sides: Annotated[
        list[Annotated[list[str], Field(min_length=1, max_length=MAX_NAMES)]],
        Field(min_length=2, max_length=MAX_SIDES),
    ]


class _Stopped(Exception):
    """Nobody waits for the verdict any more."""


class Verdicts:
    """Verdicts on the runs of a listing, given one at a time; their pages are kept for a while."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self._runs, self._test_data = runs, folder / TEST_DATA
        self._executor = ThreadPoolExecutor(1, "verdict")
        self._pages: dict[str, bytes] = {}

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/runs/verdict", self.judge, methods=["POST"]),
            Route("/runs/verdicts/{number}/report", self.page),
        ]

    async def judge(self, request: Request) -> Response:
        sides, known = (await parse(request, VerdictRequest)).sides, self._runs.model_names()
        if unknown := [name for side in sides for name in side if name not in known]:
            raise ApiError(404, f"{unknown[0]:.200}: no such run with a model here: see /runs.json", code="no_run")
        if sum(map(len, sides)) > MAX_NAMES:
            raise ApiError(400, f"sides: expected at most {MAX_NAMES} runs", param="sides", code="invalid_value")
        if not self._test_data.exists():
            raise ApiError(409, f"{TEST_DATA}, on which runs are compared, is not here: run `dvc pull` or `dvc repro`")
        return CancellableResponse(lambda send: send_events(send, self._events(sides)))

    async def page(self, request: Request) -> Response:
        content = self._pages.get(request.path_params["number"])
        if content is None:
            raise ApiError(404, "this verdict is not kept any more: ask for it again on /runs", code="no_verdict")
        return Response(content, media_type="text/html", headers=SANDBOX)

    async def _events(self, sides: list[list[str]]) -> AsyncIterator[bytes]:
        """Each run when it was measured, then the verdict or why there is none, as JSON."""
        names: asyncio.Queue[str | None] = asyncio.Queue()
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        def measured(run: Run) -> None:
            if stopped.is_set():
                raise _Stopped
            loop.call_soon_threadsafe(names.put_nowait, run.name)

        judging = loop.run_in_executor(self._executor, self._compare, sides, measured)
        judging.add_done_callback(lambda _: names.put_nowait(None))
        try:
            while name := await names.get():
                yield json.dumps({"measured": name}).encode()
            if error := judging.exception():
                LOGGER.error("the comparison of %s failed", sides, exc_info=error)
                problem = f"the comparison failed ({type(error).__name__}): the server's log has more"
                yield json.dumps({"problem": problem}).encode()
                return
            yield json.dumps(judging.result()).encode()
        finally:
            stopped.set()

    def _compare(self, sides: list[list[str]], measured: Callable[[Run], None]) -> dict[str, Any]:
        try:
            verdict = views.compare_sides(sides, measured, self._test_data)
        except _Stopped:
            return {}
        except USER_ERRORS as error:
            return {"problem": error_line(error)}
        number = token_urlsafe(8)
        self._pages[number] = views.page(verdict).encode()
        for oldest in list(self._pages)[:-MAX_PAGES]:
            del self._pages[oldest]
        return {"sentences": verdict.sentences, "heads": verdict.heads, "note": verdict.note, "number": number}
