"""The jobs that the scheduler runs, and the queue by which their results reach the event loop."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from chatmill.conversation import Part
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

FLUSH = 0.02  # seconds between two batches, in which the tokens of a fast model gather
Result = TypeVar("Result")


class ResultQueue(Generic[Result]):
    """A queue from one thread to one asyncio task, which is woken only if it waits."""

    def __init__(self) -> None:
        """Must be called in the event loop."""
        self._items: deque[Result] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed, self._changed = asyncio.Event(), asyncio.Event()  # `_changed` is cleared only to wait for it

    def put(self, item: Result) -> None:
        """Add an item; called by the thread."""
        self._items.append(item)
        if not self._changed.is_set():
            self._wake(self._changed)

    def close(self) -> None:
        """Close the queue after its last item; called by the thread."""
        self._wake(self._closed)
        self._wake(self._changed)

    async def batches(self) -> AsyncIterator[list[Result]]:
        """The items that have come since the last ones, until the queue is closed; the first without delay."""
        while True:
            if items := [self._items.popleft() for _ in range(len(self._items))]:
                yield items
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), FLUSH)
            elif self._closed.is_set():
                return
            else:
                self._changed.clear()
                if not self._items:  # one may have come before the thread saw that the event is cleared
                    await self._changed.wait()

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


class Job(ABC):
    """What a scheduler does for a request; its results are read in the event loop."""

    needs_all_logits = False  # after each of the prompt's ids, not only after the last

    def __init__(self, ids: list[int], time_limit: float) -> None:
        self.prompt_ids, self.pending = ids, ids  # those to run through the model next
        self.cached_tokens = 0
        self.results: ResultQueue[Any] = ResultQueue()
        self.error: Exception | None = None
        self.cancelled = False  # the client has disconnected
        # in seconds of perf_counter; 0 if that has not happened
        self.submitted_at, self.started_at, self.first_token_at, self.ended_at = perf_counter(), 0.0, 0.0, 0.0
        self.deadline = self.submitted_at + time_limit

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the job is complete."""

    @property
    def all_ids(self) -> list[int]:
        """The ids of the prompt and the answer so far; the engine may not have read the last of them."""
        return self.prompt_ids

    def start(self, cached_tokens: int) -> None:
        """Start the job; the first `cached_tokens` ids are in the cache already."""
        self.started_at, self.cached_tokens = perf_counter(), cached_tokens
        self.pending = self.prompt_ids[cached_tokens:]

    @abstractmethod
    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Continue with logits (V,) after all pending ids; `likeliest` is their argmax, if that is known.

        If all logits are needed, they are (T, V), after each of the first T pending ids.
        """

    def finish(self, error: Exception | None = None) -> None:
        self.error, self.ended_at = error, perf_counter()
        self.results.close()


class CompletionJob(Job):
    """An answer that is being generated; its results are Updates."""

    def __init__(
        self, prompt_builder: PromptBuilder, ids: list[int], config: GenerationConfig, time_limit: float
    ) -> None:
        super().__init__(ids, time_limit)
        self.finish_reason = "length"
        self.num_logprobs, self._is_text = config.num_logprobs, prompt_builder.tokenizer.is_text
        self._stop_ids = prompt_builder.stop_ids
        self._detokenizer = IncrementalDetokenizer(prompt_builder.tokenizer, prompt_builder.template, config.stop)
        if config.answer_prefix is not None:
            self._detokenizer.answer_prefix = config.answer_prefix
        self.generation = Generation(
            ids,
            remaining_context=prompt_builder.context - len(ids),
            sampler=Sampler(prompt_builder.allowed, config.sampling),
            stop_ids=self._stop_ids,
            max_tokens=config.max_tokens,
            tool=prompt_builder.tool,
        )

    @property
    def all_ids(self) -> list[int]:
        return self.prompt_ids + self.generation.generated_ids

    @property
    def done(self) -> bool:
        return self.generation.done or self._detokenizer.stopped

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Add the next token to the answer, chosen from logits (V,)."""
        self.first_token_at = self.first_token_at or perf_counter()
        ids = self.generation.step(logits, likeliest)
        self.pending = self.generation.pending
        is_text = self._detokenizer.part_kind == "text" and self._is_text[ids[0]]
        parts = [part for token in ids for part in self._decode(token)]
        if ids[-1] in self._stop_ids or self._detokenizer.stopped:
            self.finish_reason = "stop"
        logprobs = []
        if is_text and self.num_logprobs is not None:
            logprobs = [token_logprob(logits, ids[0], self.num_logprobs)]
        self.results.put(Update(parts, ids, logprobs))

    def finish(self, error: Exception | None = None) -> None:
        if not error and (text := self._detokenizer.finish()):
            self.results.put(Update([Part("text", text)], [], []))
        super().finish(error)

    def _decode(self, token: int) -> Iterator[Part]:
        """Yield the parts that a token adds, texts and calls of tools, in order."""
        before = len(self._detokenizer.parts)
        if text := self._detokenizer.push(token):
            yield Part("text", text)
        yield from (part for part in self._detokenizer.parts[before:] if part.kind != "text")


class LogprobsJob(Job):
    """The log probabilities of all tokens of a text, except the first; its results are TokenLogprobs."""

    needs_all_logits = True

    def __init__(self, ids: list[int], num_logprobs: int, time_limit: float) -> None:
        super().__init__(ids, time_limit)
        self._num_logprobs = num_logprobs

    @property
    def done(self) -> bool:
        return not self.pending

    def process_logits(self, logits: np.ndarray, _: int | None = None) -> None:
        """Compute the log probability of the id after each of the first pending ones, from logits (T, V)."""
        for row, token in zip(logits, self.pending[1 : len(logits) + 1], strict=False):
            self.results.put(token_logprob(row, token, self._num_logprobs))
        del self.pending[: len(logits)]
