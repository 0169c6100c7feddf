"""What is asked of a model: an answer, or the probabilities of a text. A scheduler reads its ids, it takes the logits.

What ids say is found out by who takes them (chatmill.app.server.streaming), as the model goes on meanwhile.

Shapes: T time (tokens), V vocabulary.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from chatmill.app.server.result_queue import ResultQueue
from chatmill.inference.detokenizer import IncrementalDetokenizer
from chatmill.inference.generation import Generation
from chatmill.inference.prompt_builder import PromptBuilder
from chatmill.inference.sampler import Sampler, Sampling

MIN_LOGPROB = -9999.0  # the logarithm of a probability of 0, as JSON can say it


class TokenLogprob(NamedTuple):
    """How likely a token was, and the likeliest in its place: logarithms of probabilities."""

    token: int
    logprob: float
    top_logprobs: list[tuple[int, float]]


class AnswerDelta(NamedTuple):
    """What is new of an answer."""

    ids: list[int]
    logprobs: list[TokenLogprob]  # of the tokens that are text, where they were asked for


class GenerationConfig(NamedTuple):
    """How an answer is to be generated."""

    sampling: Sampling
    max_tokens: int
    stop: Sequence[str] = ()
    num_logprobs: int | None = None  # of each token's likeliest; None: no probabilities at all
    answer_prefix: str | None = None  # what may stand before an answer and is left out; None: what the template says


class Timestamps(NamedTuple):
    """When what happened, in seconds of perf_counter; 0 where it has not."""

    submitted_at: float
    started_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0


class Job(Protocol):
    """What a scheduler needs to know."""

    prompt_ids: list[int]  # that it begins with
    needs_all_logits: bool  # whether logits are wanted after each of the ids
    cancelled: bool  # nobody waits for it any more
    deadline: float  # of perf_counter
    times: Timestamps

    @property
    def pending(self) -> list[int]:
        """The ids to be read next."""

    @property
    def all_ids(self) -> list[int]:
        """The ids that were given to the engine, and maybe more."""

    @property
    def done(self) -> bool:
        """Whether there is no more to do."""

    def start(self, cached_tokens: int) -> None:
        """The first `known` of the ids are in the cache already."""

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None, /) -> None:
        """Go on from logits (V,), or of whole texts (T, V); `likeliest` is where they are largest, if that is known."""

    def finish(self, error: Exception | None = None) -> None:
        """There will be no more."""


class CompletionJob:
    """An answer as it grows; its pieces are taken from `results` in the event loop."""

    needs_all_logits = False

    def __init__(self, interpreter: PromptBuilder, ids: list[int], config: GenerationConfig, time_limit: float) -> None:
        self.prompt_ids, self.cancelled = ids, False
        self.error: Exception | None = None
        self.cached_tokens, self.finish_reason = 0, "length"
        self.results: ResultQueue[AnswerDelta] = ResultQueue()
        self.times = Timestamps(perf_counter())
        self.deadline = self.times.submitted_at + time_limit
        self.num_logprobs, self._is_text = config.num_logprobs, interpreter.tokenizer.is_text
        self._stop_ids = interpreter.stop_ids
        stops = config.stop or interpreter.template.stop
        self._reply = (
            new_reply(interpreter, config) if stops or config.num_logprobs is not None else None
        )  # whose text matters
        self.generation = Generation(
            ids,
            remaining_context=interpreter.context - len(ids),
            sampler=Sampler(interpreter.allowed, config.sampling),
            stop_ids=interpreter.stop_ids,
            max_tokens=config.max_tokens,
            tool=interpreter.tool,
        )

    @property
    def pending(self) -> list[int]:
        """The ids to be read next."""
        return self.generation.pending

    @property
    def all_ids(self) -> list[int]:
        """The ids of the prompt, and of the answer as far as it is."""
        return self.prompt_ids + self.generation.generated_ids

    @property
    def done(self) -> bool:
        """Whether there is no more to generate."""
        return self.generation.done or (self._reply is not None and self._reply.stopped)

    def start(self, cached_tokens: int) -> None:
        """The first `known` of the ids are in the cache already."""
        self.cached_tokens = cached_tokens
        self.generation.pending = self.prompt_ids[cached_tokens:]

    def process_logits(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Add what follows to the answer, by logits (V,)."""
        if not self.times.first_token_at:
            self.times = self.times._replace(first_token_at=perf_counter())
        ids = self.generation.step(logits, likeliest)
        logprobs = self._update_reply(self._reply, ids, logits) if self._reply else []
        if ids[-1] in self._stop_ids:
            self.finish_reason = "stop"
        self.results.put(AnswerDelta(ids, logprobs))

    def finish(self, error: Exception | None = None) -> None:
        """There will be no more."""
        self.error, self.times = error, self.times._replace(ended_at=perf_counter())
        self.results.close()

    def _update_reply(self, reply: IncrementalDetokenizer, ids: list[int], logits: np.ndarray) -> list[TokenLogprob]:
        """See whether the text stops; the probability of the first of the ids, where it is text and that is wanted."""
        is_text = reply.part_kind == "text" and self._is_text[ids[0]]
        for token in ids:
            reply.push(token)
        if reply.stopped:
            self.finish_reason = "stop"
        return [] if self.num_logprobs is None or not is_text else [token_logprob(logits, ids[0], self.num_logprobs)]


class LogprobsJob:
    """The probabilities of a text's tokens, as one piece of which there are no ids and no parts."""

    needs_all_logits = True

    def __init__(self, ids: list[int], num_logprobs: int, time_limit: float) -> None:
        self.prompt_ids = self.pending = self.all_ids = ids
        self.done = self.cancelled = False
        self.error: Exception | None = None
        self.results: ResultQueue[list[TokenLogprob]] = ResultQueue()
        self.times = Timestamps(perf_counter())
        self.deadline = self.times.submitted_at + time_limit
        self._num_logprobs = num_logprobs

    def start(self, cached_tokens: int) -> None:
        """Nothing is known already: the logits of all are wanted."""

    def process_logits(self, logits: np.ndarray, _: int | None = None) -> None:
        """What each of the ids but the first is worth, by logits (T, V)."""
        self.results.put(
            [token_logprob(row, i, self._num_logprobs) for row, i in zip(logits, self.prompt_ids[1:], strict=False)]
        )
        self.done = True

    def finish(self, error: Exception | None = None) -> None:
        """There will be no more."""
        self.error = error
        self.results.close()


def new_reply(interpreter: PromptBuilder, config: GenerationConfig) -> IncrementalDetokenizer:
    """What makes text of the ids of an answer."""
    reply = IncrementalDetokenizer(interpreter.tokenizer, interpreter.template, config.stop)
    reply.answer_prefix = reply.answer_prefix if config.answer_prefix is None else config.answer_prefix
    return reply


def token_logprob(logits: np.ndarray, token: int, num_logprobs: int) -> TokenLogprob:
    """How likely a token is by logits (V,), and the `top` likeliest."""
    scaled = logits - logits.max()
    scaled -= np.log(np.exp(scaled, dtype=np.float64).sum()).astype(np.float32)
    num_logprobs = min(num_logprobs, len(scaled))
    likeliest: list[int] = np.argpartition(-scaled, num_logprobs - 1)[:num_logprobs].tolist() if num_logprobs else []
    pairs = sorted(((i, float(scaled[i])) for i in likeliest), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(token, clamp_logprob(float(scaled[token])), [(i, clamp_logprob(value)) for i, value in pairs])


def clamp_logprob(value: float) -> float:
    """A logarithm of a probability that JSON can say."""
    return max(value, MIN_LOGPROB)
