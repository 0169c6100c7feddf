"""The runs of the repository in which the server was started: their listing, training curves and reports."""

import asyncio
import csv
import json
import math
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe
from time import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatmill.app.introduction import Introduction
from chatmill.app.named_models import WORKSPACE
from chatmill.app.runs.dvc_runs import exp_show, run_dvc
from chatmill.app.runs.git_runs import git_states
from chatmill.app.runs.rows import REPORT, RunFiles, RunRow, flattened, name_rows, run_rows
from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.request_body import read_body
from chatmill.app.server.run_introductions import introduce_run
from chatmill.app.server.run_notes import check_name, check_note, read_notes, write_note
from chatmill.app.server.security import is_loopback
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
        self.ticket = token_urlsafe(16)  # gives access to reports, as a link cannot carry the API key
        self._folder = folder
        self._listing: asyncio.Task[dict[str, Any]] | None = None
        self._early = asyncio.Event()  # set when an early listing can be given
        self._rows: dict[str, RunRow] = {}
        self._files: RunFiles | None = None
        self._read_lock = asyncio.Lock()
        self._live_curves: dict[str, Points] = {}  # by revision, as last read: DVC removes that of a failed run
        self._outs: dict[str, dict[str, Any]] = {}  # by revision
        self._introductions: dict[str, Introduction] = {}  # by revision

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

    async def introduction(self, name: str, *, generated_only: bool) -> Introduction:
        """The prompts of a run, as far as they are on this machine; the runs are listed if they have not been yet."""
        if self._listing is None:
            await self.listing(early=True)
        run = self._rows.get(name)
        if run is None or self._files is None or self._folder is None:
            return Introduction()
        if run["rev"] not in self._introductions:
            state = {"rev": run["rev"], "outs": self._outs.get(run["rev"], {})}
            self._introductions[run["rev"]] = await asyncio.to_thread(
                introduce_run, state, self._folder, self._files, generated_only=generated_only
            )
        return self._introductions[run["rev"]]

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

    async def describe(self, name: str, label: object, note: object) -> RunRow:
        """Give a run another name and note, where they are given. Raises ApiError where that is not possible."""
        if label not in (None, (self._rows.get(name) or {}).get("label")) and self._listing:
            await asyncio.shield(self._listing)  # which would show the name of before again
        run = self._rows.get(name)
        if run is None or self._folder is None:
            raise ApiError(404, f"{name:.200}: this run is gone: press Refresh", code="no_run")
        if run["state"] != "done" or run["rev"] == WORKSPACE:
            message = f"{name:.200} has no commit yet, which a name or note needs: finish the run, and commit it"
            raise ApiError(409, message, code="no_commit")
        new_label = run["label"] if label in (None, run["label"]) else check_name(label)
        text = run["note"] if note is None else check_note(note)
        try:
            if text != run["note"]:
                await asyncio.to_thread(write_note, self._folder, run["rev"], text)
                run["note"] = text
            if new_label != run["label"]:
                await self._rename(run, new_label, self._folder)
        except ValueError as error:
            raise ApiError(409, str(error), code="not_written") from error
        return run

    async def _rename(self, run: RunRow, label: str, folder: Path) -> None:
        if run["kind"] != "experiment":
            raise ValueError(f"{run['label']:.200} is no experiment: `git branch -m` renames a branch")
        await run_dvc(["exp", "rename", "--", run["label"], label], folder)
        run["label"] = label
        name_rows(self._rows.values(), folder)
        self._rows = {each["name"]: each for each in self._rows.values()}

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
        self._files, self._introductions = RunFiles(folder), {}
        self._outs = {state["rev"]: (state["data"] or {}).get("outs") or {} for state in flattened(states)}
        rows, notes = run_rows(states, folder, self._files), read_notes(folder)
        return [run | {"note": notes.get(run["rev"], "")} for run in rows]

    def _described(self, problem: str | None, notes: list[str], *, is_complete: bool) -> dict[str, Any]:
        runs = list(self._rows.values())
        result = {"runs": runs, "problem": problem, "notes": notes, "ticket": self.ticket, "read": time()}
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


def check_local(request: Request) -> None:
    """Raise ApiError for a request that a proxy passes on, or that comes from another machine."""
    is_forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip"))
    if is_forwarded or not request.client or not is_loopback(request.client.host):
        message = "names and notes are written on the machine that serves alone: open /runs there"
        raise ApiError(403, message, code="not_local")


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

    async def describe(request: Request) -> Response:
        check_local(request)
        try:
            body = json.loads(await read_body(request))
        except ValueError as error:
            raise ApiError(400, f"the body is no JSON: {error}") from error
        given = body if isinstance(body, dict) else {}
        check_ticket(str(given.get("ticket")))
        return JSONResponse(await runs.describe(request.path_params["name"], given.get("name"), given.get("note")))

    def check_ticket(ticket: str) -> None:
        if not compare_digest(ticket.encode("utf-8", "replace"), runs.ticket.encode()):
            raise ApiError(403, "the link is from an earlier start of the server: open /runs", code="bad_ticket")

    async def report(request: Request) -> Response:
        check_ticket(request.query_params.get("ticket", ""))
        content = await runs.report(request.path_params["name"])
        if content is None:
            message = f"{request.path_params['name']:.200}: there is no report on this machine"
            raise ApiError(404, message, code="no_report")
        return Response(content, media_type="text/html", headers=SANDBOX)

    return [
        Route("/runs.json", listing),
        Route("/runs/{name:path}/curve.json", curve),
        Route("/runs/{name:path}/report", report),
        Route("/runs/{name:path}/description", describe, methods=["POST"]),
    ]
