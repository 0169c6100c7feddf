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

from chatmill.app.server.api_errors import DeadlineExceeded, QueueFull, SchedulerStopped
from chatmill.app.server.jobs import Job
from chatmill.engines.batching import BatchedChat, make_chat_batch
from chatmill.engines.engine import Engine
from chatmill.inference.chat_session import common_prefix_length
from chatmill.pipeline.user_errors import USER_ERRORS

PREFILL_CHUNK = 256  # tokens of a prompt that are read before anybody else gets a turn
SHORT_PREFILL = 8  # tokens, as of a tool's output, that are read one by one with the others' rather than on their own
MAX_LOGITS = 1 << 26  # logits of a whole text that are held at once: 256 MB


class Slot:
    """One chat's row of the caches, and what it has read."""

    def __init__(self, chat: BatchedChat) -> None:
        self.chat, self.last_used = chat, 0.0
        self.cached_ids: list[int] = []  # in the cache, while no job is at work

    def cache_gain(self, ids: list[int]) -> int:
        """What is won by reading ids here: those it has read already, less those that it would forget."""
        return 2 * common_prefix_length(self.cached_ids, ids[:-1]) - len(self.cached_ids)


class RunningJob(NamedTuple):
    """A job at work in a row."""

    slot: Slot
    job: Job


class Scheduler:
    """Runs the jobs of one model, of which `rows` can go on at once and `waiting` more may wait."""

    def __init__(self, engine: Engine, *, num_slots: int, max_waiting: int) -> None:
        self._chats, self.num_slots = make_chat_batch(engine, num_slots)
        self._max_jobs, self._vocab_size = self.num_slots + max_waiting, engine.vocab_size
        self._slots: list[Slot] = []
        self._running: list[RunningJob] = []
        self._waiting: deque[Job] = deque()
        self._changed = Condition()  # held to change what follows here
        self._has_changed = self._stopped = False
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
        return not self._waiting and not self._running

    def submit(self, job: Job) -> None:
        """Add a job. Raises QueueFull or SchedulerStopped, and ValueError for a text whose logits would be too many."""
        if job.needs_all_logits and len(job.prompt_ids) * self._vocab_size > MAX_LOGITS:
            raise ValueError(f"{len(job.prompt_ids)} tokens: expected at most {MAX_LOGITS // self._vocab_size}")
        with self._changed:
            if self._stopped:
                raise SchedulerStopped("the model answers no more")
            if len(self._waiting) + len(self._running) >= self._max_jobs:
                raise QueueFull(f"{len(self._waiting)} requests wait already")
            self._waiting.append(job)
            self._notify()

    def cancel(self, job: Job) -> None:
        """Nobody waits for a job any more: it ends before its next token."""
        with self._changed:
            job.cancelled = True
            self._notify()

    def stop(self) -> None:
        """End all jobs, and the thread."""
        with self._changed:
            self._stopped = True
            self._notify()
        self._thread.join()

    def _notify(self) -> None:
        self._has_changed = True
        self._changed.notify()

    def _run(self) -> None:
        try:
            while not self._stopped:
                if not self._running or self._has_changed or perf_counter() > self._deadline:
                    self._schedule()
                self._advance()
        finally:  # whatever happens, nobody waits for ever
            with self._changed:
                self._stopped = True
            for job in [*(turn.job for turn in self._running), *self._waiting]:
                job.finish(SchedulerStopped("the server is being stopped"))

    def _schedule(self) -> None:
        """Wait until there is something to do, let go of what nobody waits for, and give those who wait free rows."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_changed or self._running)
            self._has_changed = False
            aborted = [job for job in self._waiting if abort_reason(job)]
            self._waiting = deque(job for job in self._waiting if job not in aborted)
        for running in self._running[:]:
            if why := abort_reason(running.job):
                self._finish(running, why)
        for job in aborted:
            job.finish(abort_reason(job))
        while self._waiting and len(self._running) < self.num_slots:
            self._start(self._waiting[0])
        unfinished = [*(turn.job for turn in self._running), *self._waiting]
        self._deadline = min((job.deadline for job in unfinished), default=inf)

    def _start(self, job: Job) -> None:
        """Give the job that waits longest a row; until it has one it waits, so that whatever fails it is ended."""
        try:
            slot = self._choose([] if job.needs_all_logits else job.prompt_ids)
        except USER_ERRORS as error:
            self._waiting.popleft()
            job.finish(error)
            return
        cached_tokens = 0 if job.needs_all_logits else common_prefix_length(slot.cached_ids, job.prompt_ids[:-1])
        slot.chat.rewind(cached_tokens)
        job.times = job.times._replace(started_at=perf_counter())
        running = RunningJob(slot, job)
        self._running.append(running)
        self._waiting.popleft()
        job.start(cached_tokens)
        if job.done:
            self._finish(running)

    def _choose(self, ids: list[int]) -> Slot:
        """The free row that holds most of some ids, else a new one, else that used longest ago."""
        taken = [turn.slot for turn in self._running]
        free = [row for row in self._slots if row not in taken]
        best = max(free, key=lambda row: row.cache_gain(ids), default=None)
        if best is not None and best.cache_gain(ids) > 0:
            return best
        if len(self._slots) == self.num_slots:
            return min(free, key=lambda row: row.last_used)
        self._slots.append(Slot(self._chats.join()))
        return self._slots[-1]

    def _advance(self) -> None:
        """Read a stretch of one prompt, and one token of each answer that grows."""
        if len(self._running) == 1:
            self._run_one(self._running[0])
            return
        prefilling = [
            turn for turn in self._running if len(turn.job.pending) > SHORT_PREFILL or turn.job.needs_all_logits
        ]
        decoding = [turn for turn in self._running if turn not in prefilling] if prefilling else self._running[:]
        if prefilling:
            self._run_one(prefilling[0])
        if decoding:
            self._run_batch(decoding)

    def _run_one(self, running: RunningJob) -> None:
        """Read what a job has pending, or a stretch of it."""
        slot, job = running
        pending = job.pending
        chunk = pending[:PREFILL_CHUNK]
        try:
            logits = slot.chat.sequence_logits(job.prompt_ids) if job.needs_all_logits else slot.chat.append(chunk)
        except USER_ERRORS as error:
            self._finish(running, error)
            return
        if job.needs_all_logits or len(chunk) == len(pending):
            self._process_logits(running, logits)
        else:
            del pending[: len(chunk)]

    def _run_batch(self, batch: list[RunningJob]) -> None:
        """Read one token that each of some jobs has pending."""
        try:
            logits = self._chats.step([(row.chat, job.pending[0]) for row, job in batch])
        except USER_ERRORS as error:
            for turn in batch:
                self._finish(turn, error)
            return
        for turn, one, likeliest in zip(batch, logits, logits.argmax(axis=1).tolist(), strict=True):
            if len(turn.job.pending) == 1:
                self._process_logits(turn, one, likeliest)
            else:
                del turn.job.pending[0]

    def _process_logits(self, running: RunningJob, logits: np.ndarray, likeliest: int | None = None) -> None:
        try:
            running.job.process_logits(logits, likeliest)
        except USER_ERRORS as error:
            self._finish(running, error)
        else:
            if running.job.done:
                self._finish(running)

    def _finish(self, running: RunningJob, error: Exception | None = None) -> None:
        """Free a row; what was read stays in it, unless the engine failed."""
        slot, job = running
        self._running.remove(running)
        self._has_changed = True  # the row is free
        if isinstance(error, USER_ERRORS):
            slot.chat.rewind(0)
        slot.cached_ids, slot.last_used = job.all_ids[: slot.chat.length], perf_counter()
        job.finish(error)


def abort_reason(job: Job) -> Exception | None:
    """Why a job ends before it is done; None where it goes on."""
    if job.cancelled:
        return SchedulerStopped("nobody waits for the answer")
    return DeadlineExceeded("the time for an answer is over") if perf_counter() > job.deadline else None
