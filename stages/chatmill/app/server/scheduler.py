"""One thread that runs a model for all who ask it: prompts are read in turn, answers grow together.

What a chat has read stays in its row of the caches, until another needs it: the next question of the same chat is read
from where the last answer ended.
"""

from collections import deque
from math import inf
from threading import Condition, Thread
from time import perf_counter

import numpy as np

from chatmill.app.server.errors import Full, Late, Stopped
from chatmill.app.server.jobs import Job
from chatmill.engines.chats import Chat, chats_of
from chatmill.engines.engine import Engine
from chatmill.inference.chat import common_length
from chatmill.pipeline.errors import MISTAKES

CHUNK = 256  # tokens of a prompt that are read before anybody else gets a turn
SHORT = 8  # tokens, as of a tool's output, that are read one by one with the others' rather than on their own
PROBABILITIES = 1 << 26  # logits of a whole text that are held at once: 256 MB


class Row:
    """One chat's row of the caches, and what it has read."""

    def __init__(self, chat: Chat) -> None:
        self.chat, self.used = chat, 0.0
        self.ids: list[int] = []  # in the cache, while no job is at work
        self.job: Job | None = None

    def gain(self, ids: list[int]) -> int:
        """What is won by reading ids here: those it has read already, less those that it would forget."""
        return 2 * common_length(self.ids, ids[:-1]) - len(self.ids)


class Scheduler:
    """Runs the jobs of one model, of which `rows` can go on at once and `waiting` more may wait."""

    def __init__(self, engine: Engine, *, rows: int, waiting: int) -> None:
        self._chats, self.rows = chats_of(engine, rows)
        self._most, self._vocab_size = self.rows + waiting, engine.vocab_size
        self._rows: list[Row] = []
        self._busy: list[Row] = []  # those with a job
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
            for job in [*(row.job for row in self._busy), *self._waiting]:
                job.end(Stopped("the server is being stopped"))

    def _look_around(self) -> None:
        """Wait until there is something to do, let go of what nobody waits for, and give those who wait free rows."""
        with self._news:
            self._news.wait_for(lambda: self._is_news or self._busy)
            self._is_news = False
            late = [job for job in self._waiting if too_late(job)]
            self._waiting = deque(job for job in self._waiting if job not in late)
        for row in [row for row in self._busy if too_late(row.job)]:
            self._end(row, too_late(row.job))
        for job in late:
            job.end(too_late(job))
        while self._waiting and len(self._busy) < self.rows:
            self._begin(self._waiting[0])
        going_on = [*(row.job for row in self._busy), *self._waiting]
        self._deadline = min((job.deadline for job in going_on), default=inf)

    def _begin(self, job: Job) -> None:
        """Give the job that waits longest a row; until it has one it waits, so that whatever fails it is ended."""
        try:
            row = self._choose([] if job.whole else job.ids)
        except MISTAKES as error:
            self._waiting.popleft()
            job.end(error)
            return
        known = 0 if job.whole else common_length(row.ids, job.ids[:-1])
        row.chat.rewind(known)
        row.job, job.times = job, job.times._replace(begun=perf_counter())
        self._busy.append(row)
        self._waiting.popleft()
        job.begin(known)
        if job.done:
            self._end(row)

    def _choose(self, ids: list[int]) -> Row:
        """The free row that holds most of some ids, else a new one, else that used longest ago."""
        free = [row for row in self._rows if row.job is None]
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
        reading = [row for row in self._busy if len(row.job.pending) > SHORT or row.job.whole]
        growing = [row for row in self._busy if row not in reading] if reading else self._busy[:]
        if reading:
            self._read(reading[0])
        if growing:
            self._step(growing)

    def _read(self, row: Row) -> None:
        """Read what a job has pending, or a stretch of it."""
        job, pending = row.job, row.job.pending
        stretch = pending[:CHUNK]
        try:
            logits = row.chat.score(job.ids) if job.whole else row.chat.append(stretch)
        except MISTAKES as error:
            self._end(row, error)
            return
        if job.whole or len(stretch) == len(pending):
            self._take(row, logits)
        else:
            del pending[: len(stretch)]

    def _step(self, rows: list[Row]) -> None:
        """Read one token that each of some jobs has pending."""
        try:
            logits = self._chats.step([(row.chat, row.job.pending[0]) for row in rows])
        except MISTAKES as error:
            for row in rows:
                self._end(row, error)
            return
        for row, one, likeliest in zip(rows, logits, logits.argmax(axis=1).tolist(), strict=True):
            if len(row.job.pending) == 1:
                self._take(row, one, likeliest)
            else:
                del row.job.pending[0]

    def _take(self, row: Row, logits: np.ndarray, likeliest: int | None = None) -> None:
        try:
            row.job.take(logits, likeliest)
        except MISTAKES as error:
            self._end(row, error)
        else:
            if row.job.done:
                self._end(row)

    def _end(self, row: Row, error: Exception | None = None) -> None:
        """Free a row; what was read stays in it, unless the engine failed."""
        job, row.job = row.job, None
        self._busy.remove(row)
        self._is_news = True  # the row is free
        if isinstance(error, MISTAKES):
            row.chat.rewind(0)
        row.ids, row.used = job.read[: row.chat.length], perf_counter()
        job.end(error)


def too_late(job: Job) -> Exception | None:
    """Why a job ends before it is done; None where it goes on."""
    if job.cancelled:
        return Stopped("nobody waits for the answer")
    return Late("the time for an answer is over") if perf_counter() > job.deadline else None
