"""The generation loop. It knows token ids only.

Shapes: V vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chatmill.engines.engine import Reader
from chatmill.inference.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model can call: `run` turns the ids between `start` and `end` into those that are forced in after."""

    start: int
    end: int
    run: Callable[[list[int]], list[int]]

    def output(self, reply: list[int]) -> list[int]:
        """The ids to force in after a reply: the output of the call that has just ended, if one has."""
        if reply[-1] != self.end or self.start not in reply:
            return []
        start = len(reply) - 1 - reply[::-1].index(self.start)
        call = reply[start + 1 : -1]
        return [] if self.end in call else self.run(call)


class Generation:
    """A reply as it grows, whoever runs the model: it reads `pending`, `take` gets the logits, until it is `done`."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        room: int,
        sampler: Sampler,
        stop_ids: Collection[int],
        max_tokens: int,
        tool: Tool | None = None,
    ) -> None:
        """`room` is how many tokens fit after the prompt."""
        self.pending = list(prompt_ids)  # ids that the model reads next
        self.reply: list[int] = []
        self._sampler, self._stop_ids, self._tool = sampler, stop_ids, tool
        self._most = min(max_tokens, room)
        self.done = self._most <= 0

    def take(self, logits: np.ndarray, likeliest: int | None = None) -> list[int]:
        """The ids that follow, by what Sampler.pick takes: the chosen one, and after a call the tool's output."""
        chosen = self._sampler.pick(logits, self.reply, likeliest)
        self.reply.append(chosen)
        forced = self._tool.output(self.reply) if self._tool is not None else []
        if chosen in self._stop_ids or len(self.reply) + len(forced) > self._most:
            self.done = True
            return [chosen]
        self.reply += forced
        self.pending = [chosen, *forced]
        self.done = len(self.reply) >= self._most
        return [chosen, *forced]


def generate(
    engine: Reader,
    prompt_ids: Sequence[int],
    *,
    sampler: Sampler,
    stop_ids: Collection[int],
    max_tokens: int,
    tool: Tool | None = None,
) -> Iterator[int]:
    """Yield the ids that follow the prompt, the tool's outputs among them, up to and with a stop id.

    It ends without a stop id after `max_tokens`, or where the context is full. The prompt is read after what the
    engine's cache holds; of the ids yielded, the cache then holds all but the last ones.
    """
    room = engine.context - engine.length - len(prompt_ids)
    generation = Generation(prompt_ids, room=room, sampler=sampler, stop_ids=stop_ids, max_tokens=max_tokens, tool=tool)
    while not generation.done:
        yield from generation.take(engine.append(generation.pending))
