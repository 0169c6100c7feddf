"""The engine of graphs that name their inputs: ids, masks, positions, and a past that comes back longer.

Shapes: B batch, T time (tokens given), P past, S = P + T, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from chatmill.engines.engine import check_append, check_rewind
from chatmill.engines.onnx.graph_inputs import CacheSpec, Graph, NodeArg, read_graph
from chatmill.engines.onnx.session import Session

DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and past what they were trained for they ramble
SIZES = (64, 128, *range(1, 513))  # of heads, and how many, where a graph says neither: the common ones first

NamedArrays = dict[str, np.ndarray]


class RunInput(NamedTuple):
    """The tokens of one run: read after `past` others, and padded on the right to `time`."""

    ids: Sequence[int]
    past: int
    time: int
    logits_to_keep: int  # of how many the logits are wanted

    @property
    def total(self) -> int:
        """Tokens read after this run."""
        return self.past + len(self.ids)

    @property
    def padding(self) -> int:
        """Positions after the last token."""
        return self.time - len(self.ids)


class GraphEngine:
    """Runs a graph with or without a past. What cannot be kept or cut is computed again from the ids."""

    def __init__(self, session: Session, name: str, context: int | None = None) -> None:
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.fingerprint = session.metadata.get("chatmill.fingerprint", "")
        self.template = session.metadata.get("chatmill.template", "")
        self._session, self._graph = session, session.inspect(read_graph)
        if any(None in cache.empty_shape for cache in self._graph.caches):
            self._graph = replace(self._graph, caches=self._complete_caches())
        self.context = self._context(context)
        self._ids: list[int] = []  # all that was read
        self._cached, self._past = 0, self._empty_past()  # tokens in the past
        self.vocab_size = self._vocab_size()

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those read before: logits (V,) of what comes next."""
        check_append(self, ids)
        last: np.ndarray = self._read(ids, all_logits=False)[-1]
        return last

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        del self._ids[length:]
        if length >= self._cached:
            return
        if all(cache.rewindable for cache in self._graph.caches):
            self._cached, self._past = (
                length,
                {c.past: _truncate(c, self._past[c.past], length) for c in self._graph.caches},
            )
        else:
            self._cached, self._past = 0, self._empty_past()

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._read(ids, all_logits=True)
        self.rewind(0)
        if len(logits) < len(ids):  # the graph gives those of the last position alone
            logits = np.stack([self.append([token]) for token in ids])
            self.rewind(0)
        return logits

    def _context(self, context: int | None) -> int:
        """What was asked for, or the metadata say, as far as the graph's shapes have room for it."""
        trained_context = self._session.metadata.get("chatmill.context", "")
        requested = context or (int(trained_context) if trained_context.isdecimal() else 0)
        room = self._graph.context
        return min(requested or room or DEFAULT_CONTEXT, room or requested or DEFAULT_CONTEXT)

    def _vocab_size(self) -> int:
        """V, which a run tells where the shape of the logits does not."""
        width = self._graph.logits.shape[-1]
        if isinstance(width, int):
            return width
        outputs = self._run(RunInput([0], 0, self._graph.time or 1, 1), self._past)
        return int(outputs[self._graph.logits.name].shape[-1])

    def _complete_caches(self) -> list[CacheSpec]:
        """The caches with the sizes that their shapes leave open, from the presents of the first run that succeeds."""
        window = RunInput([0], 0, self._graph.time or 1, 1)
        for size in SIZES:
            shapes = {c: tuple(size if dim is None else dim for dim in c.empty_shape) for c in self._graph.caches}
            try:
                found = self._run(window, {c.past: self._session.zeros(c.type, shape) for c, shape in shapes.items()})
            except ValueError:
                continue
            measured = {c: zip(c.empty_shape, found[c.present].shape, strict=True) for c in shapes}
            return [
                replace(c, empty_shape=tuple(b if a is None else a for a, b in dims)) for c, dims in measured.items()
            ]
        names = ", ".join(cache.past for cache in self._graph.caches if None in cache.empty_shape)
        raise ValueError(f"{self._session.file}: no size up to {max(SIZES)} fits the open dimensions of {names}")

    def _empty_past(self) -> NamedArrays:
        """The empty past that a text begins with."""
        shapes = {
            cache: [dim or 0 for dim in cache.empty_shape] for cache in self._graph.caches
        }  # none is open any more
        return {cache.past: self._session.zeros(cache.type, shape) for cache, shape in shapes.items()}

    def _read(self, ids: Sequence[int], *, all_logits: bool) -> np.ndarray:
        """Logits (T, V) of all positions, or of the last ones; what was read before stays where a run fails."""
        sequence, held, logits = [*self._ids, *ids], self._cached, []
        past: NamedArrays | None = self._past
        while held < len(sequence):
            if past is None:
                raise ValueError(f"{self._session.file}: it reads {held} tokens at once and gives no past after them")
            count = self._max_run_tokens(held) or len(sequence)
            chunk = sequence[held : held + count]
            window = RunInput(chunk, held, self._graph.time or len(chunk), len(chunk) if all_logits else 1)
            outputs = self._run(window, past)
            logits.append(self._logits(outputs[self._graph.logits.name], window))
            past, held = self._next_past(outputs, past, window), window.total
        self._ids = sequence
        if self._graph.caches and past is not None:
            self._cached, self._past = held, past
        return np.concatenate(logits if all_logits else logits[-1:])

    def _max_run_tokens(self, held: int) -> int | None:
        """How many tokens a run may take. A branch for what follows a past may have been traced with a single one."""
        branched = any(role == "branch" for _, role in self._graph.roles)
        return 1 if branched and held else self._graph.time

    def _run(self, window: RunInput, past: NamedArrays) -> NamedArrays:
        roles = self._graph.roles
        feed = {node.name: _value(node, role, window, self._graph) for node, role in roles}
        types = {node.name: node.type for node, _ in roles} | {cache.past: cache.type for cache in self._graph.caches}
        wanted = [self._graph.logits.name, *(cache.present for cache in self._graph.caches)]
        return self._session.run(wanted, feed | past, types)

    def _logits(self, logits: np.ndarray, window: RunInput) -> np.ndarray:
        """(B, T, V), or (B, V) of the last position -> those of the first row's tokens."""
        rows: np.ndarray = logits.reshape(self._graph.batch, -1, logits.shape[-1])[0].astype(np.float32)
        if len(rows) <= window.padding:
            raise ValueError(
                f"{self._session.file}: it reads {window.time} tokens at once and gives the last one's logits alone"
            )
        return rows[: len(rows) - window.padding]

    def _next_past(self, outputs: NamedArrays, past: NamedArrays, window: RunInput) -> NamedArrays | None:
        """What the next run is handed; None where a branch without a past gives none."""
        present = {}
        for cache in self._graph.caches:
            expected, found = list(past[cache.past].shape), outputs[cache.present]
            if cache.axis is not None:
                expected[cache.axis] += window.time
            if list(found.shape) != expected:
                if not window.past and any(role == "branch" for _, role in self._graph.roles):
                    return None
                raise ValueError(
                    f"{self._session.file}: {cache.present} is {found.shape}, but {tuple(expected)} was expected"
                )
            present[cache.past] = _truncate(cache, found, window.total)
        return present


def _value(node: NodeArg, role: str, window: RunInput, graph: Graph) -> np.ndarray:
    """What a role's input is given: as many rows as it takes."""
    if role == "positions" and node.shape in ([], [1]):
        role = "past"  # that of the first token
    if role == "mask":
        value = _mask(node, window)
    elif role == "ids":
        value = np.array([*window.ids, *[0] * window.padding])
    elif role == "positions":
        value = np.arange(window.past, window.past + window.time)
    elif role == "types":
        value = np.zeros(window.time)
    else:
        value = np.array(_number(role, window))
    leading = node.shape[: max(0, len(node.shape) - value.ndim)]
    rows = [dim if isinstance(dim, int) else graph.batch for dim in leading]
    return np.broadcast_to(value, (*rows, *value.shape))


def _number(role: str, window: RunInput) -> int:
    numbers = {"total": window.total, "last": window.total - 1, "past": window.past, "branch": window.past > 0}
    return numbers[role] if role in numbers else window.logits_to_keep + window.padding


def _mask(node: NodeArg, window: RunInput) -> np.ndarray:
    """(S,) of one where a token is; with more dimensions (T, S): where each position may look, or what is added."""
    width = node.shape[-1] if isinstance(node.shape[-1], int) else window.past + window.time
    columns = np.arange(width)
    if len(node.shape) < 3:
        return columns < window.total
    visible = columns <= np.arange(window.past, window.past + window.time)[:, None]
    if node.type in ("tensor(bool)", "tensor(int32)", "tensor(int64)"):
        return visible
    lowest = np.finfo(np.float16 if node.type == "tensor(float16)" else np.float32).min
    return np.where(visible, 0, lowest)


def _truncate(cache: CacheSpec, past: np.ndarray, length: int) -> np.ndarray:
    """The first `length` tokens of a past; all of one that does not grow."""
    if cache.axis is None or past.shape[cache.axis] == length:
        return past
    return np.ascontiguousarray(past[(slice(None),) * cache.axis + (slice(length),)])
