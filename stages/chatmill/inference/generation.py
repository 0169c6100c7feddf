"""The generation loop. It knows token ids only."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from chatmill.engines.engine import Engine
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


def generate(
    engine: Engine,
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
    reply: list[int] = []
    pending = list(prompt_ids)
    max_tokens = min(max_tokens, engine.context - engine.length - len(pending))
    while len(reply) < max_tokens:
        chosen = sampler.pick(engine.append(pending), reply)
        reply.append(chosen)
        yield chosen
        forced = tool.output(reply) if tool is not None else []
        if chosen in stop_ids or len(reply) + len(forced) > max_tokens:
            return
        reply += forced
        yield from forced
        pending = [chosen, *forced]
