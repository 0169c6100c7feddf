"""One thread runs a model for all requests: prompts are prefilled one at a time, answers are decoded in a batch.

A prompt is prefilled in chunks of about 50 ms. Between two of them the answers get their next tokens, and a cancelled
request ends. The sizes of chunks are powers of two. They change logits by less than 1e-5, as batches do. Only the log
probabilities of a text are computed at once.

The ids of a chat stay in the KV cache of its slot until another chat needs the slot, so that for the next question of
the same chat only the new ids are prefilled.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, Thread
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from chatmill.app.server.security import ApiError
from chatmill.conversation import Part
from chatmill.engines.engine import ChatBatch, Engine
from chatmill.inference.chat_session import PromptBuilder, common_prefix_length
from chatmill.inference.sampler import (
    Generation,
    IncrementalDetokenizer,
    Sampler,
    Sampling,
    TokenLogprob,
    token_logprob,
)
from chatmill.pipeline.processes import USER_ERRORS

# A queue from a thread to the event loop.

FLUSH = 0.02  # seconds between two batches, in which the tokens of a fast model gather
Result = TypeVar("Result")


class ResultQueue(Generic[Result]):
    """A queue from one thread, which puts items and closes it, to one asyncio task, which is woken for the first."""

    def __init__(self) -> None:
        """Must be called in the event loop."""
        self._items: deque[Result] = deque()
        self._loop = asyncio.get_running_loop()
        self._begun, self._closed = asyncio.Event(), asyncio.Event()

    def put(self, item: Result) -> None:
        self._items.append(item)
        if not self._begun.is_set():
            self._wake(self._begun)

    def close(self) -> None:
        self._wake(self._begun)
        self._wake(self._closed)

    async def batches(self) -> AsyncIterator[list[Result]]:
        """The items that have come since the last ones, until the queue is closed; the first without delay."""
        await self._begun.wait()
        is_last = False
        while not is_last:
            is_last = self._closed.is_set()
            if items := [self._items.popleft() for _ in range(len(self._items))]:
                yield items
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), FLUSH)

    def _wake(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the event loop is closed already
            self._loop.call_soon_threadsafe(event.set)


# The jobs of a model: an answer, or the log probabilities of a text.


class Update(NamedTuple):
    """What was added to an answer: parts, and the ids and log probabilities of which they were decoded."""

    parts: list[Part]
    ids: list[int]
    logprobs: list[TokenLogprob]  # of text tokens, if requested


class GenerationConfig(NamedTuple):
    sampling: Sampling
    max_tokens: int
    stop: Sequence[str] = ()
    num_logprobs: int | None = None  # the top logprobs of each token; None: no logprobs at all
    answer_prefix: str | None = None  # removed from the start of an answer; None: the template's


class Job:
    """What a scheduler does for a request; its results are read in the event loop."""

    done = False

    def __init__(self, ids: list[int], time_limit: float, reusable: int = 0) -> None:
        """The first `reusable` ids need not be run through the model if a cache holds them."""
        self.prompt_ids, self.reusable_ids = ids, ids[:reusable]
        self.pending = ids  # to run through the model next
        self.all_ids = list(ids)  # with those of the answer so far, of which the engine may not have read the last
        self.cached_tokens = 0
        self.results: ResultQueue[Any] = ResultQueue()
        self.error: Exception | None = None
        self.cancelled = False  # the client has disconnected
        # in seconds of perf_counter; 0 if that has not happened
        self.submitted_at, self.started_at, self.first_token_at, self.ended_at = perf_counter(), 0.0, 0.0, 0.0
        self.deadline = self.submitted_at + time_limit

    def start(self, chat: Engine, cached_tokens: int) -> None:
        self.started_at, self.cached_tokens = perf_counter(), cached_tokens
        self.pending = self.prompt_ids[cached_tokens:]

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Continue with logits (V,) after all pending ids; `likeliest` is their argmax, if that is known."""

    def finish(self, error: Exception | None = None) -> None:
        self.error, self.ended_at = error, perf_counter()
        self.results.close()

    def abort_reason(self) -> ApiError | None:
        """Why the job ends before it is done; None if it continues."""
        if self.cancelled:
            return stopping("the request was cancelled")
        if perf_counter() > self.deadline:
            return ApiError(504, "the answer took longer than the time limit", code="time_limit")
        return None


def stopping(message: str) -> ApiError:
    return ApiError(503, message, code="stopping")


class CompletionJob(Job):
    """An answer that is being generated; its results are Updates."""

    def __init__(self, builder: PromptBuilder, ids: list[int], config: GenerationConfig, time_limit: float) -> None:
        super().__init__(ids, time_limit, len(ids) - 1)  # the logits after the last one are needed
        self.finish_reason = "length"
        self.num_logprobs, self._is_text = config.num_logprobs, builder.tokenizer.is_text
        self._stop_ids = builder.stop_ids
        self._detokenizer = IncrementalDetokenizer(builder.tokenizer, builder.template, config.stop)
        if config.answer_prefix is not None:
            self._detokenizer.answer_prefix = config.answer_prefix
        self.generation = Generation(
            ids,
            remaining_context=builder.context - len(ids),
            sampler=Sampler(builder.allowed, config.sampling),
            stop_ids=self._stop_ids,
            max_tokens=config.max_tokens,
            tool=builder.tool,
        )
        self.done = self.generation.done

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Add the token chosen from logits (V,) to the answer and, after a call, the output of the tool."""
        self.first_token_at = self.first_token_at or perf_counter()
        ids = self.generation.step(logits, likeliest)
        self.all_ids += ids
        self.pending = self.generation.pending
        is_text = self._detokenizer.part_kind == "text" and self._is_text[ids[0]]
        parts: list[Part] = []
        for token in ids:
            before = len(self._detokenizer.parts)
            if text := self._detokenizer.push(token):
                parts.append(Part("text", text))
            parts += [part for part in self._detokenizer.parts[before:] if part.kind != "text"]
        self.done = self.generation.done or self._detokenizer.stopped
        if ids[-1] in self._stop_ids or self._detokenizer.stopped:
            self.finish_reason = "stop"
        has_logprob = is_text and self.num_logprobs is not None
        logprobs = [token_logprob(logits, ids[0], self.num_logprobs or 0)] if has_logprob else []
        self.results.put(Update(parts, ids, logprobs))

    def finish(self, error: Exception | None = None) -> None:
        if not error and (text := self._detokenizer.finish()):
            self.results.put(Update([Part("text", text)], [], []))
        super().finish(error)


class LogprobsJob(Job):
    """The log probabilities of all tokens of a text, except the first; its results are TokenLogprobs."""

    def __init__(self, ids: list[int], num_logprobs: int, time_limit: float) -> None:
        super().__init__(ids, time_limit)
        self._num_logprobs = num_logprobs

    def start(self, chat: Engine, cached_tokens: int) -> None:
        super().start(chat, cached_tokens)
        logits = chat.sequence_logits(self.prompt_ids)
        for row, token in zip(logits, self.prompt_ids[1:], strict=False):
            self.results.put(token_logprob(row, token, self._num_logprobs))
        self.done = True


# The thread of a model, and a slot for each job that runs.

CHUNK_SECONDS = 0.05  # for a chunk of a prompt, which is prefilled between two decoding steps
MIN_CHUNK, MAX_CHUNK = 8, 256  # tokens; a longer chunk is no faster
SHORT_PREFILL = 8  # so few pending tokens, as of a tool's output, are fed one by one in the decoding batch


class Slot:
    """A KV cache for one chat at a time, and the ids in it."""

    def __init__(self, chat: Engine) -> None:
        self.chat, self.last_used = chat, 0.0
        self.cached_ids: list[int] = []  # in the cache; valid while no job is running

    def cache_gain(self, ids: list[int]) -> int:
        """How many tokens this slot saves for a prompt: cached ones that are reused less cached ones that are lost."""
        return 2 * common_prefix_length(self.cached_ids, ids) - len(self.cached_ids)


class Scheduler:
    """Runs the jobs of one model: at most `num_slots` at once, while at most `max_waiting` more wait."""

    def __init__(self, engine: Engine, *, num_slots: int, max_waiting: int) -> None:
        self._batch = ChatBatch(engine, num_slots)
        self._slots = [Slot(chat) for chat in self._batch.chats]
        self.num_slots, self._max_waiting = len(self._slots), max_waiting
        self._running: dict[Job, Slot] = {}
        self._chunk_size = min(4 * MIN_CHUNK, MAX_CHUNK)  # the most tokens that take about CHUNK_SECONDS
        self._waiting: deque[Job] = deque()
        self._changed = Condition()  # protects the waiting jobs
        self.alive = True
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, job: Job) -> None:
        """Raises ApiError if the queue is full. A job that is cancelled ends soon."""
        with self._changed:
            if not self.alive:
                raise stopping("the model has stopped: try again later")
            if len(self._waiting) + len(self._running) >= self.num_slots + self._max_waiting:
                message = f"the server is busy: {len(self._waiting)} requests are waiting"
                raise ApiError(429, message, code="queue_full")
            self._waiting.append(job)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self.alive = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self.alive:
                self._schedule()
                self._advance()
        finally:  # so that no request waits for ever, even after an unexpected exception
            with self._changed:
                self.alive = False
            for job in [*self._running, *self._waiting]:
                job.finish(stopping("the server is being stopped"))

    def _schedule(self) -> None:
        """Wait for work, end jobs that are cancelled or late, and start waiting jobs in free slots."""
        with self._changed:
            self._changed.wait_for(lambda: not self.alive or not self.idle)
            aborted = [job for job in self._waiting if job.abort_reason()]
            for job in aborted:
                self._waiting.remove(job)
        for job in aborted:
            job.finish(job.abort_reason())
        for job in list(self._running):
            if reason := job.abort_reason():
                self._finish(job, reason)
        while self._waiting and len(self._running) < self.num_slots:
            self._start(self._waiting[0])

    def _start(self, job: Job) -> None:
        """Start the first waiting job in a slot; it leaves the queue afterwards, so that an exception ends it too."""
        slot = self._choose(job.reusable_ids)
        cached_tokens = common_prefix_length(slot.cached_ids, job.reusable_ids)
        slot.chat.rewind(cached_tokens)
        self._running[job] = slot
        self._waiting.popleft()
        with self._ending(job):
            job.start(slot.chat, cached_tokens)

    def _choose(self, ids: list[int]) -> Slot:
        """The free slot that saves most tokens of a prompt, else the least recently used."""
        free = [slot for slot in self._slots if slot not in self._running.values()]
        best = max(free, key=lambda slot: slot.cache_gain(ids))
        return best if best.cache_gain(ids) > 0 else min(free, key=lambda slot: slot.last_used)

    def _advance(self) -> None:
        if len(self._running) == 1:
            self._run_one(next(iter(self._running)))
            return
        prefilling = [job for job in self._running if len(job.pending) > SHORT_PREFILL]
        decoding = [job for job in self._running if job not in prefilling]
        if prefilling:
            self._run_one(prefilling[0])
        if decoding:
            self._run_batch(decoding)

    def _run_one(self, job: Job) -> None:
        chunk = job.pending[: self._chunk_size]
        with self._ending(job):
            started = perf_counter()
            logits = self._running[job].chat.append(chunk)
            seconds = perf_counter() - started
            if seconds > CHUNK_SECONDS:
                self._chunk_size = max(MIN_CHUNK, self._chunk_size // 2)
            elif seconds < CHUNK_SECONDS / 3 and len(chunk) == self._chunk_size:
                self._chunk_size = min(MAX_CHUNK, 2 * self._chunk_size)
            self._continue(job, len(chunk), logits)

    def _run_batch(self, jobs: list[Job]) -> None:
        try:
            logits = self._batch.step([(self._running[job].chat, job.pending[0]) for job in jobs])
        except USER_ERRORS as error:
            for job in jobs:
                self._finish(job, error)
            return
        for job, row, likeliest in zip(jobs, logits, logits.argmax(axis=1).tolist(), strict=True):
            with self._ending(job):
                self._continue(job, 1, row, likeliest)

    def _continue(self, job: Job, count: int, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Go on after the first `count` pending ids, with the logits (V,) after them."""
        if count == len(job.pending):
            job.process_logits(logits, likeliest)
        else:
            job.pending = job.pending[count:]

    @contextmanager
    def _ending(self, job: Job) -> Iterator[None]:
        """End a job that fails in the body, or is done after it."""
        try:
            yield
        except USER_ERRORS as error:
            self._finish(job, error)
        else:
            if job.done:
                self._finish(job)

    def _finish(self, job: Job, error: Exception | None = None) -> None:
        """End a job and free its slot, whose cache remains for the next question unless the work itself failed."""
        slot = self._running.pop(job)
        if isinstance(error, USER_ERRORS):  # no ApiError: a job that is cancelled or late leaves the cache whole
            slot.chat.rewind(0)
        slot.cached_ids, slot.last_used = job.all_ids[: slot.chat.length], perf_counter()
        job.finish(error)
