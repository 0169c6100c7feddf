"""One thread that runs a model for all who ask it: prompts are read in turn, answers grow together.

What a chat has read stays in its row of the caches, until another needs it: the next question of the same chat is read
from where the last answer ended.
"""

from collections import deque
from math import inf
from threading import Condition, Thread
from time import perf_counter
from typing import NamedTuple

import numpy as np

from chatmill.app.server.errors import Full, Late, Stopped
from chatmill.app.server.jobs import Job
from chatmill.engines.chats import Chat, chats_of
from chatmill.engines.engine import Engine
from chatmill.inference.chat import common_length
from chatmill.pipeline.errors import USER_ERRORS

CHUNK = 256  # tokens of a prompt that are read before anybody else gets a turn
SHORT = 8  # tokens, as of a tool's output, that are read one by one with the others' rather than on their own
PROBABILITIES = 1 << 26  # logits of a whole text that are held at once: 256 MB


class Row:
    """One chat's row of the caches, and what it has read."""

    def __init__(self, chat: Chat) -> None:
        self.chat, self.used = chat, 0.0
        self.ids: list[int] = []  # in the cache, while no job is at work

    def gain(self, ids: list[int]) -> int:
        """What is won by reading ids here: those it has read already, less those that it would forget."""
        return 2 * common_length(self.ids, ids[:-1]) - len(self.ids)


class Turn(NamedTuple):
    """A job at work in a row."""

    row: Row
    job: Job


class Scheduler:
    """Runs the jobs of one model, of which `rows` can go on at once and `waiting` more may wait."""

    def __init__(self, engine: Engine, *, rows: int, waiting: int) -> None:
        self._chats, self.rows = chats_of(engine, rows)
        self._most, self._vocab_size = self.rows + waiting, engine.vocab_size
        self._rows: list[Row] = []
        self._busy: list[Turn] = []
        self._waiting: deque[Job] = deque()
        self._news = Condition()  # held to change what follows here
        self._is_news = self._stopped = False
        self._deadline = inf  # the first of those who go on or wait
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it takes jobs."""
        return not self._stopped

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._busy

    def submit(self, job: Job) -> None:
        """Have a job done. Raises Full, or Stopped; and ValueError for a text that is too long to hold its logits."""
        if job.whole and len(job.ids) * self._vocab_size > PROBABILITIES:
            raise ValueError(f"{len(job.ids)} tokens: expected at most {PROBABILITIES // self._vocab_size}")
        with self._news:
            if self._stopped:
                raise Stopped("the model answers no more")
            if len(self._waiting) + len(self._busy) >= self._most:
                raise Full(f"{len(self._waiting)} requests wait already")
            self._waiting.append(job)
            self._tell()

    def cancel(self, job: Job) -> None:
        """Nobody waits for a job any more: it ends before its next token."""
        with self._news:
            job.cancelled = True
            self._tell()

    def stop(self) -> None:
        """End all jobs, and the thread."""
        with self._news:
            self._stopped = True
            self._tell()
        self._thread.join()

    def _tell(self) -> None:
        self._is_news = True
        self._news.notify()

    def _run(self) -> None:
        try:
            while not self._stopped:
                if not self._busy or self._is_news or perf_counter() > self._deadline:
                    self._look_around()
                self._advance()
        finally:  # whatever happens, nobody waits for ever
            with self._news:
                self._stopped = True
            for job in [*(turn.job for turn in self._busy), *self._waiting]:
                job.end(Stopped("the server is being stopped"))

    def _look_around(self) -> None:
        """Wait until there is something to do, let go of what nobody waits for, and give those who wait free rows."""
        with self._news:
            self._news.wait_for(lambda: self._is_news or self._busy)
            self._is_news = False
            late = [job for job in self._waiting if too_late(job)]
            self._waiting = deque(job for job in self._waiting if job not in late)
        for turn in self._busy[:]:
            if why := too_late(turn.job):
                self._end(turn, why)
        for job in late:
            job.end(too_late(job))
        while self._waiting and len(self._busy) < self.rows:
            self._begin(self._waiting[0])
        going_on = [*(turn.job for turn in self._busy), *self._waiting]
        self._deadline = min((job.deadline for job in going_on), default=inf)

    def _begin(self, job: Job) -> None:
        """Give the job that waits longest a row; until it has one it waits, so that whatever fails it is ended."""
        try:
            row = self._choose([] if job.whole else job.ids)
        except USER_ERRORS as error:
            self._waiting.popleft()
            job.end(error)
            return
        known = 0 if job.whole else common_length(row.ids, job.ids[:-1])
        row.chat.rewind(known)
        job.times = job.times._replace(begun=perf_counter())
        turn = Turn(row, job)
        self._busy.append(turn)
        self._waiting.popleft()
        job.begin(known)
        if job.done:
            self._end(turn)

    def _choose(self, ids: list[int]) -> Row:
        """The free row that holds most of some ids, else a new one, else that used longest ago."""
        taken = [turn.row for turn in self._busy]
        free = [row for row in self._rows if row not in taken]
        best = max(free, key=lambda row: row.gain(ids), default=None)
        if best is not None and best.gain(ids) > 0:
            return best
        if len(self._rows) == self.rows:
            return min(free, key=lambda row: row.used)
        self._rows.append(Row(self._chats.join()))
        return self._rows[-1]

    def _advance(self) -> None:
        """Read a stretch of one prompt, and one token of each answer that grows."""
        if len(self._busy) == 1:
            self._read(self._busy[0])
            return
        reading = [turn for turn in self._busy if len(turn.job.pending) > SHORT or turn.job.whole]
        growing = [turn for turn in self._busy if turn not in reading] if reading else self._busy[:]
        if reading:
            self._read(reading[0])
        if growing:
            self._step(growing)

    def _read(self, turn: Turn) -> None:
        """Read what a job has pending, or a stretch of it."""
        row, job = turn
        pending = job.pending
        stretch = pending[:CHUNK]
        try:
            logits = row.chat.score(job.ids) if job.whole else row.chat.append(stretch)
        except USER_ERRORS as error:
            self._end(turn, error)
            return
        if job.whole or len(stretch) == len(pending):
            self._take(turn, logits)
        else:
            del pending[: len(stretch)]

    def _step(self, turns: list[Turn]) -> None:
        """Read one token that each of some jobs has pending."""
        try:
            logits = self._chats.step([(row.chat, job.pending[0]) for row, job in turns])
        except USER_ERRORS as error:
            for turn in turns:
                self._end(turn, error)
            return
        for turn, one, likeliest in zip(turns, logits, logits.argmax(axis=1).tolist(), strict=True):
            if len(turn.job.pending) == 1:
                self._take(turn, one, likeliest)
            else:
                del turn.job.pending[0]

    def _take(self, turn: Turn, logits: np.ndarray, likeliest: int | None = None) -> None:
        try:
            turn.job.take(logits, likeliest)
        except USER_ERRORS as error:
            self._end(turn, error)
        else:
            if turn.job.done:
                self._end(turn)

    def _end(self, turn: Turn, error: Exception | None = None) -> None:
        """Free a row; what was read stays in it, unless the engine failed."""
        row, job = turn
        self._busy.remove(turn)
        self._is_news = True  # the row is free
        if isinstance(error, USER_ERRORS):
            row.chat.rewind(0)
        row.ids, row.used = job.read[: row.chat.length], perf_counter()
        job.end(error)


def too_late(job: Job) -> Exception | None:
    """Why a job ends before it is done; None where it goes on."""
    if job.cancelled:
        return Stopped("nobody waits for the answer")
    return Late("the time for an answer is over") if perf_counter() > job.deadline else None
