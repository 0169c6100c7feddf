"""One thread runs a model for all requests: prompts are prefilled one at a time, answers are decoded in a batch.

A prompt is prefilled in chunks of about 50 ms. Between two of them the answers get their next tokens, and a cancelled
request ends. The sizes of chunks are powers of two. They change logits by less than 1e-5, as batches do.

The ids of a chat stay in the KV cache of its slot until another chat needs the slot, so that for the next question of
the same chat only the new ids are prefilled.
"""

from collections import deque
from math import inf
from threading import Condition, Thread
from time import perf_counter

import numpy as np

from chatmill.app.server.jobs import Job
from chatmill.app.server.security import ApiError
from chatmill.engines.engine import CachedEngine, Engine, make_chat_batch
from chatmill.inference.chat_session import common_prefix_length
from chatmill.pipeline.processes import USER_ERRORS

CHUNK_SECONDS = 0.05  # for a chunk of a prompt, which is prefilled between two decoding steps
MIN_CHUNK, MAX_CHUNK = 8, 256  # tokens; a longer chunk is no faster
SHORT_PREFILL = 8  # so few pending tokens, as of a tool's output, are fed one by one in the decoding batch
MAX_LOGITS = 1 << 26  # of a text, which are held at once: 256 MB


class Slot:
    """A KV cache for one chat at a time, and the ids in it."""

    def __init__(self, chat: CachedEngine) -> None:
        self.chat, self.last_used = chat, 0.0
        self.cached_ids: list[int] = []  # in the cache; valid while no job is running

    def cache_gain(self, ids: list[int]) -> int:
        """How many tokens this slot saves for a prompt: cached ones that are reused less cached ones that are lost."""
        return 2 * common_prefix_length(self.cached_ids, ids[:-1]) - len(self.cached_ids)


class Scheduler:
    """Runs the jobs of one model: at most `num_slots` at once, while at most `max_waiting` more wait."""

    def __init__(self, engine: Engine, *, num_slots: int, max_waiting: int) -> None:
        self._batch = make_chat_batch(engine, num_slots)
        self._slots = [Slot(chat) for chat in self._batch.chats]
        self.num_slots, self._vocab_size = len(self._slots), engine.vocab_size
        self.max_jobs = self.num_slots + max_waiting
        self._running: dict[Job, Slot] = {}
        self._chunk_size = min(4 * MIN_CHUNK, MAX_CHUNK)  # the most tokens that take about CHUNK_SECONDS
        self._waiting: deque[Job] = deque()
        self._changed = Condition()  # protects the waiting jobs and the flags of the next line
        self._has_changed = self._stopped = False
        self._deadline = inf  # the earliest of all running and waiting jobs
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._stopped

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, *jobs: Job) -> None:
        """Add all of these jobs, or none. Raises ApiError if the queue is full or a text's logits are too many."""
        for job in jobs:
            if job.needs_all_logits and len(job.prompt_ids) * self._vocab_size > MAX_LOGITS:
                message = f"{len(job.prompt_ids)} tokens: expected at most {MAX_LOGITS // self._vocab_size}"
                raise ApiError(400, message, code="invalid_value")
        with self._changed:
            if self._stopped:
                raise stopping("the model has stopped: try again later")
            if len(self._waiting) + len(self._running) + len(jobs) > self.max_jobs:
                message = f"the server is busy: {len(self._waiting)} requests are waiting"
                raise ApiError(429, message, code="queue_full")
            self._waiting.extend(jobs)
            self._notify()

    def cancel(self, job: Job) -> None:
        """Cancel a job, which ends before its next token or chunk."""
        with self._changed:
            job.cancelled = True
            self._notify()

    def stop(self) -> None:
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
        finally:  # so that no request waits for ever, even after an unexpected exception
            with self._changed:
                self._stopped = True
            for job in [*self._running, *self._waiting]:
                job.finish(stopping("the server is being stopped"))

    def _schedule(self) -> None:
        """Wait for work, end jobs that are cancelled or late, and start waiting jobs in free slots."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_changed or self._running)
            self._has_changed = False
            aborted = [job for job in self._waiting if abort_reason(job)]
            self._waiting = deque(job for job in self._waiting if job not in aborted)
        for job in list(self._running):
            if reason := abort_reason(job):
                self._finish(job, reason)
        for job in aborted:
            job.finish(abort_reason(job))
        while self._waiting and len(self._running) < self.num_slots:
            self._start(self._waiting[0])
        unfinished = [*self._running, *self._waiting]
        self._deadline = min((job.deadline for job in unfinished), default=inf)

    def _start(self, job: Job) -> None:
        """Start the first waiting job in a slot; it leaves the queue afterwards, so that an exception ends it too."""
        slot = self._choose([] if job.needs_all_logits else job.prompt_ids)
        cached_tokens = 0 if job.needs_all_logits else common_prefix_length(slot.cached_ids, job.prompt_ids[:-1])
        slot.chat.rewind(cached_tokens)
        self._running[job] = slot
        self._waiting.popleft()
        job.start(cached_tokens)
        if job.done:
            self._finish(job)

    def _choose(self, ids: list[int]) -> Slot:
        """The free slot that saves most tokens of a prompt, else the least recently used."""
        free = [slot for slot in self._slots if slot not in self._running.values()]
        best = max(free, key=lambda slot: slot.cache_gain(ids))
        return best if best.cache_gain(ids) > 0 else min(free, key=lambda slot: slot.last_used)

    def _advance(self) -> None:
        if len(self._running) == 1:
            self._run_one(next(iter(self._running)))
            return
        prefilling = [job for job in self._running if len(job.pending) > SHORT_PREFILL or job.needs_all_logits]
        decoding = [job for job in self._running if job not in prefilling]
        if prefilling:
            self._run_one(prefilling[0])
        if decoding:
            self._run_batch(decoding)

    def _run_one(self, job: Job) -> None:
        chat = self._running[job].chat
        whole = job.needs_all_logits and not chat.continues
        chunk = job.pending if whole else job.pending[: self._chunk_size]
        started = perf_counter()
        try:
            logits = chat.append_all(chunk) if job.needs_all_logits else chat.append(chunk)
        except USER_ERRORS as error:
            self._finish(job, error)
            return
        seconds = perf_counter() - started
        if seconds > CHUNK_SECONDS:
            self._chunk_size = max(MIN_CHUNK, self._chunk_size // 2)
        elif seconds < CHUNK_SECONDS / 3 and len(chunk) == self._chunk_size:
            self._chunk_size = min(MAX_CHUNK, 2 * self._chunk_size)
        if job.needs_all_logits or len(chunk) == len(job.pending):
            self._process_logits(job, logits)
        else:
            del job.pending[: len(chunk)]

    def _run_batch(self, jobs: list[Job]) -> None:
        try:
            logits = self._batch.step([(self._running[job].chat, job.pending[0]) for job in jobs])
        except USER_ERRORS as error:
            for job in jobs:
                self._finish(job, error)
            return
        for job, row, likeliest in zip(jobs, logits, logits.argmax(axis=1).tolist(), strict=True):
            if len(job.pending) == 1:
                self._process_logits(job, row, likeliest)
            else:
                del job.pending[0]

    def _process_logits(self, job: Job, logits: np.ndarray, likeliest: int | None = None) -> None:
        try:
            job.process_logits(logits, likeliest)
        except USER_ERRORS as error:
            self._finish(job, error)
        else:
            if job.done:
                self._finish(job)

    def _finish(self, job: Job, error: Exception | None = None) -> None:
        """End a job and free its slot, whose cache remains unless the engine failed."""
        slot = self._running.pop(job)
        self._has_changed = True  # the slot is free
        if isinstance(error, USER_ERRORS):
            slot.chat.rewind(0)
        slot.cached_ids, slot.last_used = job.all_ids[: slot.chat.length], perf_counter()
        job.finish(error)


def stopping(message: str) -> ApiError:
    return ApiError(503, message, code="stopping")


def abort_reason(job: Job) -> ApiError | None:
    """Why a job ends before it is done; None if it continues."""
    if job.cancelled:
        return stopping("the request was cancelled")
    if perf_counter() > job.deadline:
        return ApiError(504, "the answer took longer than the time limit", code="time_limit")
    return None
