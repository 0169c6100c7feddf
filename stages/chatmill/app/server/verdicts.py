"""Verdicts on runs: which of two models, or of two groups that differ by their seed alone, is the better one."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatmill.app.server.api_errors import PING_SECONDS, ApiError, CancellableResponse, send_events
from chatmill.app.server.request_body import read_body
from chatmill.app.server.runs import SANDBOX, Runs
from chatmill.app.verdict import views
from chatmill.app.verdict.compared_runs import LIMIT, Run
from chatmill.app.verdict.views import compare_sides
from chatmill.pipeline.user_errors import USER_ERRORS, error_line

DATA = Path("data/chat/test.jsonl")
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
        """The page of a verdict; None if it is not kept any more."""
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
        if not (self._folder / DATA).exists():
            raise ApiError(409, f"{DATA}, on which runs are compared, is not here: run `dvc pull` or `dvc repro`")
        return [list(map(str, side)) for side in sides]

    async def events(self, sides: list[list[str]]) -> AsyncIterator[bytes | None]:
        """Each run when it was measured, then the verdict or why there is none, as JSON; None in between."""
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        def send(**event: Any) -> None:
            if stopped.is_set():
                raise _Stopped
            loop.call_soon_threadsafe(events.put_nowait, event)

        def report(judging: Future[None]) -> None:
            if not judging.cancelled() and (error := judging.exception()) and not isinstance(error, _Stopped):
                LOGGER.error("a verdict failed", exc_info=error)
                event = {"problem": f"the comparison failed ({type(error).__name__}): the server's log has more"}
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._executor.submit(self._judge, sides, send).add_done_callback(report)
        try:
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), PING_SECONDS)
                except TimeoutError:
                    yield None
                    continue
                yield json.dumps(event).encode()
                if "measured" not in event:
                    return
        finally:
            stopped.set()

    def _judge(self, sides: Sequence[Sequence[str]], send: Any) -> None:
        def measured(run: Run) -> None:
            send(measured=run.name)

        judge = partial(compare_sides, format=None, limit=LIMIT, tokens=None, device="auto", threads=None)
        try:
            verdict = judge(sides, self._folder / DATA, measured=measured)
            number = token_urlsafe(8)
            self._pages[number] = views.page(verdict).encode()
            for oldest in list(self._pages)[:-MAX_PAGES]:
                del self._pages[oldest]
            send(sentences=verdict.sentences, heads=verdict.heads, note=verdict.note, number=number)
        except USER_ERRORS as error:
            send(problem=error_line(error))


def routes(verdicts: Verdicts) -> list[Route]:
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
