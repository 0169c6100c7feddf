"""The runs page: the runs of the repository in which the server was started, their curves and reports, and verdicts."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_urlsafe
from time import time
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from chatmill.app.runs import CURVE, MAX_EXPERIMENTS, REPORT, RunFiles, RunRow, State, list_states, run_rows
from chatmill.app.server.requests import parse
from chatmill.app.server.security import ApiError, CancellableResponse, send_events
from chatmill.app.verdict import Run, heads, judge, measure_runs, note, verdict_page
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.chart import downsample
from chatmill.report.inputs import read_curve

COLUMNS = ("validation_bits_per_byte", "bits_per_byte")  # of the training curve
TEST_DATA = Path("data/chat/test.jsonl")
MAX_SIDES, MAX_NAMES = 4, 12  # of a verdict
MAX_PAGES = 20  # of verdicts that are kept
SANDBOX = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cache-Control": "no-store",  # where a key is needed, a browser is to keep nothing
}


class VerdictRequest(BaseModel):
    sides: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=2, max_length=MAX_SIDES)]


class Runs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._rows: dict[str, RunRow] = {}
        self._states: dict[str, State] = {}  # by revision
        self._files: RunFiles | None = None
        self._executor = ThreadPoolExecutor(1, "verdict")  # one model is measured at a time
        self._pages: dict[str, str] = {}

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/runs.json", self.send_listing),
            Route("/runs/verdict", self.send_verdict, methods=["POST"]),
            Route("/runs/verdicts/{number}/report", self.send_page),
            Route("/runs/{name:path}/curve.json", self.send_curve),
            Route("/runs/{name:path}/report", self.send_report),
        ]

    def model_names(self) -> list[str]:
        return [name for name, run in self._rows.items() if run["model"]]

    async def send_listing(self, request: Request) -> Response:
        return JSONResponse(await self.listing("refresh" in request.query_params))

    async def listing(self, refresh: bool = False) -> dict[str, Any]:
        """All runs, or why they cannot be listed; `refresh` lists them again."""
        if self._listing is None or (refresh and self._listing.done()):
            self._listing = asyncio.create_task(asyncio.to_thread(self._list))
        return await asyncio.shield(self._listing)

    def _list(self) -> dict[str, Any]:
        problem = None
        try:
            files, states = RunFiles(self._folder), list_states(self._folder)
            self._rows = {run["name"]: run for run in run_rows(states, self._folder, files)}
            self._files, self._states = files, {state.rev: state for state in states}
        except ValueError as error:
            problem = str(error)  # the runs listed before stay
        shown = [run for run in self._rows.values() if not run["is_copy"]]
        is_full = sum(run["kind"] == "experiment" for run in shown) >= MAX_EXPERIMENTS
        notes = [f"Older runs are not shown: at most {MAX_EXPERIMENTS} experiments are listed."] if is_full else []
        return {"runs": shown, "problem": problem, "notes": notes, "read": time()}

    async def send_curve(self, request: Request) -> Response:
        """(step, bits per byte) of each column, downsampled; none if the curve is missing on this machine."""
        files, state = self._find(request)
        try:
            curve = await asyncio.to_thread(read_curve, files.file(state, CURVE), strict=False)
        except (OSError, ValueError):
            curve = {}
        return JSONResponse({column: downsample(curve[column]) for column in COLUMNS if column in curve})

    async def send_report(self, request: Request) -> Response:
        files, state = self._find(request)
        report = files.files(state, REPORT).get("index.html")
        if report is None:
            raise ApiError(404, f"{request.url.path:.200}: there is no report on this machine", code="no_report")
        return FileResponse(report, media_type="text/html", headers=SANDBOX)

    def _find(self, request: Request) -> tuple[RunFiles, State]:
        run = self._rows.get(request.path_params["name"])
        if not run or not self._files:
            raise ApiError(404, f"{request.url.path:.200}: no such run: see /runs.json", code="no_run")
        return self._files, self._states[run["rev"]]

    async def send_verdict(self, request: Request) -> Response:
        """Which of two models, or of two groups that differ by their seed alone, is the better one, as events."""
        sides, known = (await parse(request, VerdictRequest)).sides, self.model_names()
        if unknown := [name for side in sides for name in side if name not in known]:
            raise ApiError(404, f"{unknown[0]:.200}: no such run with a model here: see /runs.json", code="no_run")
        if sum(map(len, sides)) > MAX_NAMES:
            raise ApiError(400, f"sides: expected at most {MAX_NAMES} runs", param="sides", code="invalid_value")
        if not (self._folder / TEST_DATA).exists():
            raise ApiError(409, f"{TEST_DATA}, on which runs are compared, is not here: run `dvc pull` or `dvc repro`")
        return CancellableResponse(lambda send: send_events(send, self._judge(sides)))

    async def _judge(self, sides: list[list[str]]) -> AsyncIterator[bytes]:
        """Each run when it was measured, then the verdict or why there is none, as JSON."""
        loop, runs = asyncio.get_running_loop(), dict[str, Run]()
        measured = measure_runs([name for side in sides for name in side], self._folder / TEST_DATA)
        try:
            while run := await loop.run_in_executor(self._executor, lambda: next(measured, None)):
                runs[run.name] = run
                yield json.dumps({"measured": run.name}).encode()
            measured_sides = [[runs[name] for name in side] for side in sides]
            verdict = await loop.run_in_executor(self._executor, judge, measured_sides)
        except USER_ERRORS as error:
            yield json.dumps({"problem": error_line(error)}).encode()
            return
        number = token_urlsafe(8)
        self._pages[number] = verdict_page(verdict)
        for oldest in list(self._pages)[:-MAX_PAGES]:
            del self._pages[oldest]
        texts = {"sentences": verdict["verdict"], "heads": heads(verdict), "note": note(verdict)}
        yield json.dumps({**texts, "number": number}).encode()

    async def send_page(self, request: Request) -> Response:
        content = self._pages.get(request.path_params["number"])
        if content is None:
            raise ApiError(404, "this verdict is not kept any more: ask for it again on /runs", code="no_verdict")
        return Response(content, media_type="text/html", headers=SANDBOX)
