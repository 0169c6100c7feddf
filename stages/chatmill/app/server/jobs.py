"""What is asked of a model: an answer, or the probabilities of a text. A scheduler reads its ids, it takes the logits.

What ids say is found out by who takes them (chatmill.app.server.telling), as the model goes on meanwhile.

Shapes: T time (tokens), V vocabulary.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from chatmill.app.server.outlet import Outlet
from chatmill.inference.generation import Generation
from chatmill.inference.interpreter import Interpreter
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.inference.text_stream import Reply

NEVER = -9999.0  # the logarithm of a probability of 0, as JSON can say it


class Chance(NamedTuple):
    """How likely a token was, and the likeliest in its place: logarithms of probabilities."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Piece(NamedTuple):
    """What is new of an answer."""

    ids: list[int]
    chances: list[Chance]  # of the tokens that are text, where they were asked for


class Wanted(NamedTuple):
    """How an answer is to be generated."""

    sampling: Sampling
    max_tokens: int
    stop: Sequence[str] = ()
    top: int | None = None  # of each token's likeliest; None: no probabilities at all
    lead: str | None = None  # what may stand before an answer and is left out; None: what the template says


class Times(NamedTuple):
    """When what happened, in seconds of perf_counter; 0 where it has not."""

    asked: float
    begun: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class Job(Protocol):
    """What a scheduler needs to know."""

    ids: list[int]  # that it begins with
    whole: bool  # whether logits are wanted after each of the ids
    cancelled: bool  # nobody waits for it any more
    deadline: float  # of perf_counter
    times: Times

    @property
    def pending(self) -> list[int]:
        """The ids to be read next."""

    @property
    def read(self) -> list[int]:
        """The ids that were given to the engine, and maybe more."""

    @property
    def done(self) -> bool:
        """Whether there is no more to do."""

    def begin(self, known: int) -> None:
        """The first `known` of the ids are in the cache already."""

    def take(self, logits: np.ndarray, likeliest: int | None = None, /) -> None:
        """Go on from logits (V,), or of whole texts (T, V); `likeliest` is where they are largest, if that is known."""

    def end(self, error: Exception | None = None) -> None:
        """There will be no more."""


class Answer:
    """An answer as it grows; its pieces are taken from `outlet` in the event loop."""

    whole = False

    def __init__(self, interpreter: Interpreter, ids: list[int], wanted: Wanted, seconds: float) -> None:
        self.ids, self.cancelled = ids, False
        self.error: Exception | None = None
        self.cached, self.finish_reason = 0, "length"
        self.outlet: Outlet[Piece] = Outlet()
        self.times = Times(perf_counter())
        self.deadline = self.times.asked + seconds
        self.top, self._is_text = wanted.top, interpreter.tokenizer.is_text
        self._stop_ids = interpreter.stop_ids
        stops = wanted.stop or interpreter.template.stop
        self._reply = reply_of(interpreter, wanted) if stops or wanted.top is not None else None  # whose text matters
        self.generation = Generation(
            ids,
            room=interpreter.context - len(ids),
            sampler=Sampler(interpreter.allowed, wanted.sampling),
            stop_ids=interpreter.stop_ids,
            max_tokens=wanted.max_tokens,
            tool=interpreter.tool,
        )

    @property
    def pending(self) -> list[int]:
        """The ids to be read next."""
        return self.generation.pending

    @property
    def read(self) -> list[int]:
        """The ids of the prompt, and of the answer as far as it is."""
        return self.ids + self.generation.reply

    @property
    def done(self) -> bool:
        """Whether there is no more to generate."""
        return self.generation.done or (self._reply is not None and self._reply.stopped)

    def begin(self, known: int) -> None:
        """The first `known` of the ids are in the cache already."""
        self.cached = known
        self.generation.pending = self.ids[known:]

    def take(self, logits: np.ndarray, likeliest: int | None = None) -> None:
        """Add what follows to the answer, by logits (V,)."""
        if not self.times.first:
            self.times = self.times._replace(first=perf_counter())
        ids = self.generation.take(logits, likeliest)
        chances = self._follow(self._reply, ids, logits) if self._reply else []
        if ids[-1] in self._stop_ids:
            self.finish_reason = "stop"
        self.outlet.put(Piece(ids, chances))

    def end(self, error: Exception | None = None) -> None:
        """There will be no more."""
        self.error, self.times = error, self.times._replace(ended=perf_counter())
        self.outlet.close()

    def _follow(self, reply: Reply, ids: list[int], logits: np.ndarray) -> list[Chance]:
        """See whether the text stops; the probability of the first of the ids, where it is text and that is wanted."""
        is_text = reply.kind == "text" and self._is_text[ids[0]]
        for token in ids:
            reply.push(token)
        if reply.stopped:
            self.finish_reason = "stop"
        return [] if self.top is None or not is_text else [chance(logits, ids[0], self.top)]


class Reading:
    """The probabilities of a text's tokens, as one piece of which there are no ids and no parts."""

    whole = True

    def __init__(self, ids: list[int], top: int, seconds: float) -> None:
        self.ids = self.pending = self.read = ids
        self.done = self.cancelled = False
        self.error: Exception | None = None
        self.outlet: Outlet[list[Chance]] = Outlet()
        self.times = Times(perf_counter())
        self.deadline = self.times.asked + seconds
        self._top = top

    def begin(self, known: int) -> None:
        """Nothing is known already: the logits of all are wanted."""

    def take(self, logits: np.ndarray, _: int | None = None) -> None:
        """What each of the ids but the first is worth, by logits (T, V)."""
        self.outlet.put([chance(row, i, self._top) for row, i in zip(logits, self.ids[1:], strict=False)])
        self.done = True

    def end(self, error: Exception | None = None) -> None:
        """There will be no more."""
        self.error = error
        self.outlet.close()


def reply_of(interpreter: Interpreter, wanted: Wanted) -> Reply:
    """What makes text of the ids of an answer."""
    reply = Reply(interpreter.tokenizer, interpreter.template, wanted.stop)
    reply.lead = reply.lead if wanted.lead is None else wanted.lead
    return reply


def chance(logits: np.ndarray, token: int, top: int) -> Chance:
    """How likely a token is by logits (V,), and the `top` likeliest."""
    scaled = logits - logits.max()
    scaled -= np.log(np.exp(scaled, dtype=np.float64).sum()).astype(np.float32)
    top = min(top, len(scaled))
    likeliest: list[int] = np.argpartition(-scaled, top - 1)[:top].tolist() if top else []
    pairs = sorted(((i, float(scaled[i])) for i in likeliest), key=lambda pair: (-pair[1], pair[0]))
    return Chance(token, finite(float(scaled[token])), [(i, finite(value)) for i, value in pairs])


def finite(value: float) -> float:
    """A logarithm of a probability that JSON can say."""
    return max(value, NEVER)
