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
    """A tool the model can call: `run` turns the ids between `start_id` and `end_id` into those of the output."""

    start_id: int
    end_id: int
    run: Callable[[list[int]], list[int]]

    def output(self, generated_ids: list[int]) -> list[int]:
        """The ids to append to a reply: the output of the call that has just ended, if one has."""
        if generated_ids[-1] != self.end_id or self.start_id not in generated_ids:
            return []
        start = len(generated_ids) - 1 - generated_ids[::-1].index(self.start_id)
        call = generated_ids[start + 1 : -1]
        return [] if self.end_id in call else self.run(call)


class Generation:
    """A reply as it grows. The caller runs the model on `pending` and passes logits to `step` until it is `done`."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        remaining_context: int,
        sampler: Sampler,
        stop_ids: Collection[int],
        max_tokens: int,
        tool: Tool | None = None,
    ) -> None:
        """`remaining_context` is how many tokens fit after the prompt."""
        self.pending = list(prompt_ids)  # ids that the model reads next
        self.generated_ids: list[int] = []
        self._sampler, self._stop_ids, self._tool = sampler, stop_ids, tool
        self._max_new_tokens = min(max_tokens, remaining_context)
        self.done = self._max_new_tokens <= 0

    def step(self, logits: np.ndarray, likeliest: int | None = None) -> list[int]:
        """The ids that follow: the one that Sampler.sample chooses, and after a call the tool's output."""
        chosen = self._sampler.sample(logits, self.generated_ids, likeliest)
        self.generated_ids.append(chosen)
        forced = self._tool.output(self.generated_ids) if self._tool is not None else []
        if chosen in self._stop_ids or len(self.generated_ids) + len(forced) > self._max_new_tokens:
            self.done = True
            return [chosen]
        self.generated_ids += forced
        self.pending = [chosen, *forced]
        self.done = len(self.generated_ids) >= self._max_new_tokens
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
    """Yield the ids that follow the prompt, including the tool's outputs, up to and including a stop id.

    It ends without a stop id after `max_tokens`, or where the context is full. The prompt continues what the engine's
    cache holds. The cache does not yet hold the last of the yielded ids.
    """
    remaining_context = engine.context - engine.length - len(prompt_ids)
    generation = Generation(
        prompt_ids,
        remaining_context=remaining_context,
        sampler=sampler,
        stop_ids=stop_ids,
        max_tokens=max_tokens,
        tool=tool,
    )
    while not generation.done:
        yield from generation.step(engine.append(generation.pending))
