"""The jobs that the scheduler runs, and the queue by which their results reach the event loop."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from chatmill.inference.chat_session import PromptBuilder
from chatmill.inference.sampler import (
    Generation,
    IncrementalDetokenizer,
    Sampler,
    Sampling,
    TokenLogprob,
    token_logprob,
)

# A queue from a thread to the event loop.

Result = TypeVar("Result")


class ResultQueue(Generic[Result]):
    """A queue from one thread to one asyncio task, which gets all items at once and is woken only if it waits."""

    def __init__(self) -> None:
        """Must be called in the event loop."""
        self.closed = False
        self._items: deque[Result] = deque()
        self._loop, self._event, self._waiting = asyncio.get_running_loop(), asyncio.Event(), False

    def put(self, item: Result) -> None:
        """Add an item; called by the thread."""
        self._items.append(item)
        if self._waiting:
            self._wake()

    def close(self) -> None:
        """Close the queue after its last item; called by the thread."""
        self.closed = True
        self._wake()

    async def get_all(self) -> list[Result]:
        """Wait for items and return all that have come since the last call; [] if the queue is closed and empty."""
        while not (self._items or self.closed):
            self._event.clear()
            self._waiting = True
            if not (self._items or self.closed):  # an item may have come before the thread saw `_waiting`
                await self._event.wait()
        self._waiting = False
        return [self._items.popleft() for _ in range(len(self._items))]

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the queue is closed, at most `seconds`, so that results gather."""
        self._event.clear()
        if self.closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    def _wake(self) -> None:
        self._waiting = False
        with suppress(RuntimeError):  # the event loop is closed already
            self._loop.call_soon_threadsafe(self._event.set)


# The jobs of a model: an answer, or the log probabilities of a text.


class AnswerDelta(NamedTuple):
    """The tokens that were added to an answer."""

    ids: list[int]
    logprobs: list[TokenLogprob]  # of text tokens, if requested


class GenerationConfig(NamedTuple):
    """The parameters of an answer's generation."""

    sampling: Sampling
    max_tokens: int
    stop: Sequence[str] = ()
    num_logprobs: int | None = None  # the top logprobs of each token; None: no logprobs at all
    answer_prefix: str | None = None  # removed from the start of an answer; None: the template's


class Timestamps(NamedTuple):
    """When a job reached each state, in seconds of perf_counter; 0 if it has not."""

    submitted_at: float
    started_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0


class Job(Protocol):
    """A job as a scheduler sees it."""

    prompt_ids: list[int]
    needs_all_logits: bool  # after each of the prompt's ids, not only after the last
    cancelled: bool  # the client has disconnected
    deadline: float  # of perf_counter
    times: Timestamps

    @property
    def pending(self) -> list[int]:
        """The ids to run through the model next."""

    @property
    def all_ids(self) -> list[int]:
        """The ids of the prompt and the answer; the engine may not have read the last of them."""

    @property
    def done(self) -> bool:
        """Whether the job is complete."""

    def start(self, cached_tokens: int) -> None:
        """Start the job; the first `cached_tokens` ids are in the cache already."""

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None, /) -> None:
        """Continue with logits (V,) after all pending ids; `likeliest` is their argmax, if that is known.

        If all logits are needed, they are (T, V), after each of the first T pending ids.
        """

    def finish(self, error: Exception | None = None) -> None:
        """End the job and close its results."""


class CompletionJob:
    """An answer that is being generated; its deltas are read from `results` in the event loop."""

    needs_all_logits = False

    def __init__(
        self, prompt_builder: PromptBuilder, ids: list[int], config: GenerationConfig, time_limit: float
    ) -> None:
        self.prompt_ids, self.cancelled = ids, False
        self.error: Exception | None = None
        self.cached_tokens, self.finish_reason = 0, "length"
        self.results: ResultQueue[AnswerDelta] = ResultQueue()
        self.times = Timestamps(perf_counter())
        self.deadline = self.times.submitted_at + time_limit
        self.num_logprobs, self._is_text = config.num_logprobs, prompt_builder.tokenizer.is_text
        self._stop_ids = prompt_builder.stop_ids
        needs_text = config.stop or prompt_builder.template.stop or config.num_logprobs is not None
        self._detokenizer = new_detokenizer(prompt_builder, config) if needs_text else None
        self.generation = Generation(
            ids,
            remaining_context=prompt_builder.context - len(ids),
            sampler=Sampler(prompt_builder.allowed, config.sampling),
            stop_ids=self._stop_ids,
            max_tokens=config.max_tokens,
            tool=prompt_builder.tool,
        )

    @property
    def pending(self) -> list[int]:
        """The ids to run through the model next."""
        return self.generation.pending

    @property
    def all_ids(self) -> list[int]:
        """The ids of the prompt, and of the answer so far."""
        return self.prompt_ids + self.generation.generated_ids

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        stopped = self._detokenizer is not None and self._detokenizer.stopped
        return self.generation.done or stopped

    def start(self, cached_tokens: int) -> None:
        """Start the job; the first `cached_tokens` ids are in the cache already."""
        self.cached_tokens = cached_tokens
        self.generation.pending = self.prompt_ids[cached_tokens:]

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Add the next token to the answer, chosen from logits (V,)."""
        if not self.times.first_token_at:
            self.times = self.times._replace(first_token_at=perf_counter())
        ids = self.generation.step(logits, likeliest)
        logprobs = self._decode(self._detokenizer, ids, logits) if self._detokenizer else []
        if ids[-1] in self._stop_ids:
            self.finish_reason = "stop"
        self.results.put(AnswerDelta(ids, logprobs))

    def finish(self, error: Exception | None = None) -> None:
        """End the job and close its results."""
        self.error, self.times = error, self.times._replace(ended_at=perf_counter())
        self.results.close()

    def _decode(self, detokenizer: IncrementalDetokenizer, ids: list[int], logits: np.ndarray) -> list[TokenLogprob]:
        """Decode ids to find a stop text; return the logprob of the first id if it is text and requested."""
        is_text = detokenizer.part_kind == "text" and self._is_text[ids[0]]
        for token in ids:
            detokenizer.push(token)
        if detokenizer.stopped:
            self.finish_reason = "stop"
        return [] if self.num_logprobs is None or not is_text else [token_logprob(logits, ids[0], self.num_logprobs)]


class LogprobsJob:
    """A job that computes the log probabilities of all tokens of a text, except the first."""

    needs_all_logits = True

    def __init__(self, ids: list[int], num_logprobs: int, time_limit: float) -> None:
        self.prompt_ids = self.all_ids = ids
        self.pending, self.cancelled = ids[:], False
        self.error: Exception | None = None
        self.results: ResultQueue[TokenLogprob] = ResultQueue()
        self.times = Timestamps(perf_counter())
        self.deadline = self.times.submitted_at + time_limit
        self._num_logprobs = num_logprobs

    @property
    def done(self) -> bool:
        """Whether the logits of all ids are processed."""
        return not self.pending

    def start(self, cached_tokens: int) -> None:
        """Do nothing: the logits of all tokens are needed, so none is read from the cache."""

    def process_logits(self, logits: np.ndarray, _: int | None = None) -> None:
        """Compute the log probability of the id after each of the first pending ones, from logits (T, V)."""
        for row, token in zip(logits, self.pending[1 : len(logits) + 1], strict=False):
            self.results.put(token_logprob(row, token, self._num_logprobs))
        del self.pending[: len(logits)]

    def finish(self, error: Exception | None = None) -> None:
        """End the job and close its results."""
        self.error = error
        self.results.close()


def new_detokenizer(prompt_builder: PromptBuilder, config: GenerationConfig) -> IncrementalDetokenizer:
    """A detokenizer for the ids of an answer."""
    detokenizer = IncrementalDetokenizer(prompt_builder.tokenizer, prompt_builder.template, config.stop)
    detokenizer.answer_prefix = detokenizer.answer_prefix if config.answer_prefix is None else config.answer_prefix
    return detokenizer
