"""The engine of external graphs, with named inputs: ids, masks, positions, and a past that is returned longer.

Shapes: B batch, T time (tokens given), P past, S = P + T, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from chatmill.engines.engine import check_append, check_rewind
from chatmill.engines.onnx.graph_inputs import CacheSpec, Graph, NodeArg, read_graph
from chatmill.engines.onnx.session import Session

DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and beyond that their text degrades
# tried for the size and the number of heads where a graph leaves them open: the common ones first
SIZES = (64, 128, *range(1, 513))

NamedArrays = dict[str, np.ndarray]


class RunInput(NamedTuple):
    """The tokens of one run: read after `past` others, and padded on the right to `time`."""

    ids: Sequence[int]
    past: int
    time: int
    logits_to_keep: int  # last positions of which the logits are needed

    @property
    def total(self) -> int:
        """Tokens read after this run."""
        return self.past + len(self.ids)

    @property
    def padding(self) -> int:
        """Positions after the last token."""
        return self.time - len(self.ids)


class GraphEngine:
    """Runs a graph with or without a past. A past that cannot be stored or truncated is computed again from the ids."""

    def __init__(self, session: Session, name: str, context: int | None = None) -> None:
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.fingerprint = session.metadata.get("chatmill.fingerprint", "")
        self.template = session.metadata.get("chatmill.template", "")
        self._session, self._graph = session, session.inspect(read_graph)
        if any(None in cache.empty_shape for cache in self._graph.caches):
            self._graph = replace(self._graph, caches=self._complete_caches())
        self.context = self._context(context)
        self._ids: list[int] = []  # all ids that were read
        self._cached, self._past = 0, self._empty_past()  # tokens in the past
        self.vocab_size = self._vocab_size()

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those read before: logits (V,) of the next token."""
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
            self._past = {c.past: _truncate(c, self._past[c.past], length) for c in self._graph.caches}
            self._cached = length
        else:
            self._cached, self._past = 0, self._empty_past()

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a complete sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._read(ids, all_logits=True)
        self.rewind(0)
        if len(logits) < len(ids):  # the graph returns those of the last position only
            logits = np.stack([self.append([token]) for token in ids])
            self.rewind(0)
        return logits

    def _context(self, context: int | None) -> int:
        """The requested context, or that of the metadata, as far as it fits into the graph's shapes."""
        trained_context = self._session.metadata.get("chatmill.context", "")
        requested = context or (int(trained_context) if re.fullmatch(r"\d{1,9}", trained_context, re.ASCII) else 0)
        room = self._graph.context
        return min(requested or room or DEFAULT_CONTEXT, room or requested or DEFAULT_CONTEXT)

    def _vocab_size(self) -> int:
        """V, from the shape of the logits or, where it is open, from a run."""
        width = self._graph.logits.shape[-1]
        if isinstance(width, int):
            return width
        outputs = self._run(RunInput([0], 0, self._graph.time or 1, 1), self._past)
        return int(outputs[self._graph.logits.name].shape[-1])

    def _complete_caches(self) -> list[CacheSpec]:
        """The caches with the sizes that their shapes leave open, from the presents of the first run that succeeds."""
        run = RunInput([0], 0, self._graph.time or 1, 1)
        for size in SIZES:
            shapes = {c: tuple(size if dim is None else dim for dim in c.empty_shape) for c in self._graph.caches}
            try:
                past = {c.past: self._session.zeros(c.type, shape) for c, shape in shapes.items()}
                outputs = self._run(run, past)
            except ValueError:
                continue
            measured = {c: zip(c.empty_shape, outputs[c.present].shape, strict=True) for c in shapes}
            return [
                replace(c, empty_shape=tuple(b if a is None else a for a, b in dims)) for c, dims in measured.items()
            ]
        names = ", ".join(cache.past for cache in self._graph.caches if None in cache.empty_shape)
        raise ValueError(f"{self._session.file}: no size up to {max(SIZES)} fits the open dimensions of {names}")

    def _empty_past(self) -> NamedArrays:
        """The empty past with which a text begins."""
        shapes = {cache: [dim or 0 for dim in cache.empty_shape] for cache in self._graph.caches}  # all are complete
        return {cache.past: self._session.zeros(cache.type, shape) for cache, shape in shapes.items()}

    def _read(self, ids: Sequence[int], *, all_logits: bool) -> np.ndarray:
        """Logits (T, V) of all positions, or of the last ones; where a run fails, the state stays as it was."""
        sequence, cached, logits = [*self._ids, *ids], self._cached, []
        past: NamedArrays | None = self._past
        while cached < len(sequence):
            if past is None:
                raise ValueError(f"{self._session.file}: it reads {cached} tokens at once and returns no past for more")
            count = self._max_run_tokens(cached) or len(sequence)
            chunk = sequence[cached : cached + count]
            run = RunInput(chunk, cached, self._graph.time or len(chunk), len(chunk) if all_logits else 1)
            outputs = self._run(run, past)
            logits.append(self._logits(outputs[self._graph.logits.name], run))
            past, cached = self._next_past(outputs, past, run), run.total
        self._ids = sequence
        if self._graph.caches and past is not None:
            self._cached, self._past = cached, past
        return np.concatenate(logits if all_logits else logits[-1:])

    def _max_run_tokens(self, cached: int) -> int | None:
        """How many tokens a run may take. A branch for tokens after a past may have been traced with a single one."""
        branched = any(role == "branch" for _, role in self._graph.roles)
        return 1 if branched and cached else self._graph.time

    def _run(self, run: RunInput, past: NamedArrays) -> NamedArrays:
        roles = self._graph.roles
        feed = {node.name: _value(node, role, run, self._graph) for node, role in roles}
        types = {node.name: node.type for node, _ in roles} | {cache.past: cache.type for cache in self._graph.caches}
        outputs = [self._graph.logits.name, *(cache.present for cache in self._graph.caches)]
        return self._session.run(outputs, feed | past, types, tokens=run.time)

    def _logits(self, logits: np.ndarray, run: RunInput) -> np.ndarray:
        """(B, T, V), or (B, V) of the last position -> those of the first row's tokens."""
        rows: np.ndarray = logits.reshape(self._graph.batch, -1, logits.shape[-1])[0].astype(np.float32)
        if len(rows) <= run.padding:
            raise ValueError(
                f"{self._session.file}: it reads {run.time} tokens at once and returns the logits of the last one only"
            )
        return rows[: len(rows) - run.padding]

    def _next_past(self, outputs: NamedArrays, past: NamedArrays, run: RunInput) -> NamedArrays | None:
        """The past of the next run; None where a branch without a past returns none."""
        present = {}
        for cache in self._graph.caches:
            expected, array = list(past[cache.past].shape), outputs[cache.present]
            if cache.axis is not None:
                expected[cache.axis] += run.time
            if list(array.shape) != expected:
                if not run.past and any(role == "branch" for _, role in self._graph.roles):
                    return None
                raise ValueError(
                    f"{self._session.file}: {cache.present}: expected the shape {tuple(expected)}, got {array.shape}"
                )
            present[cache.past] = _truncate(cache, array, run.total)
        return present


def _value(node: NodeArg, role: str, run: RunInput, graph: Graph) -> np.ndarray:
    """The value of an input by its role, with as many rows as it takes."""
    if role == "positions" and node.shape in ([], [1]):
        role = "past"  # that of the first token
    if role == "mask":
        value = _mask(node, run)
    elif role == "ids":
        value = np.array([*run.ids, *[0] * run.padding])
    elif role == "positions":
        value = np.arange(run.past, run.past + run.time)
    elif role == "types":
        value = np.zeros(run.time)
    else:
        value = np.array(_number(role, run))
    leading = node.shape[: max(0, len(node.shape) - value.ndim)]
    rows = [dim if isinstance(dim, int) else graph.batch for dim in leading]
    return np.broadcast_to(value, (*rows, *value.shape))


def _number(role: str, run: RunInput) -> int:
    numbers = {"total": run.total, "last": run.total - 1, "past": run.past, "branch": run.past > 0}
    return numbers[role] if role in numbers else run.logits_to_keep + run.padding


def _mask(node: NodeArg, run: RunInput) -> np.ndarray:
    """(S,), true for tokens; with more dimensions (T, S), where each position may attend, or a bias of the scores."""
    width = node.shape[-1] if isinstance(node.shape[-1], int) else run.past + run.time
    columns = np.arange(width)
    if len(node.shape) < 3:
        return columns < run.total
    visible = columns <= np.arange(run.past, run.past + run.time)[:, None]
    if node.type in ("tensor(bool)", "tensor(int32)", "tensor(int64)"):
        return visible
    lowest = np.finfo(np.float16 if node.type == "tensor(float16)" else np.float32).min
    return np.where(visible, 0, lowest)


def _truncate(cache: CacheSpec, past: np.ndarray, length: int) -> np.ndarray:
    """The first `length` tokens of a past; a past that does not grow, as it is."""
    if cache.axis is None or past.shape[cache.axis] == length:
        return past
    return np.ascontiguousarray(past[(slice(None),) * cache.axis + (slice(length),)])
