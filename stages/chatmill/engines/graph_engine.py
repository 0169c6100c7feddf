"""The engine of external ONNX graphs, whose inputs are recognised by name: ids, masks, positions, and a past.

Shapes: B batch, T time (tokens given), P past, S = P + T, H heads, D head size, V vocabulary. A dimension that a graph
leaves open is a name or None.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from chatmill.engines.engine import check_append, check_rewind
from chatmill.engines.onnx_engine import Session

_ROLES = {
    "ids": ("input_ids",),
    "mask": ("attention_mask", "attn_mask", "mask", "input_mask", "causal_mask", "attention_bias"),
    "positions": ("position_ids", "positions", "pos_ids", "cache_position", "input_pos"),
    "types": ("token_type_ids", "segment_ids"),
    "keep": ("logits_to_keep", "num_logits_to_keep"),
    "branch": ("use_cache_branch",),
    "last": ("seqlens_k",),
    "total": ("total_sequence_length", "total_seq_len"),
    "past": ("past_sequence_length", "past_seq_len", "past_length", "start_pos"),
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_KNOWN = f"{', '.join(_ROLE_OF)}, or a past (past_key_values.0.key, past_0 ...) with a present of the same name"

_PAST_WORDS = {"past", "cache", "key", "value", "keys", "values", "k", "v", "kv", "state", "conv"}
_SIDE_WORDS = {"past", "present", "cache", "in", "out", "input", "output", "new", "next", "updated"}


class NodeArg(Protocol):
    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A past that is passed in and returned as the present."""

    past: str
    present: str
    empty_shape: tuple[int, ...]  # before the first token
    axis: int | None  # along which it grows by T; None if its size is fixed
    rewindable: bool  # whether later tokens in it can be removed, or are masked


@dataclass(frozen=True, slots=True)
class Graph:
    roles: list[tuple[NodeArg, str]]
    caches: list[CacheSpec]
    logits: NodeArg
    batch: int  # rows that it reads
    time: int | None  # tokens that it reads at once; None for any number
    context: int | None  # tokens that fit into its fixed shapes; None for any number


def read_graph(inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> Graph:
    """Find the roles of inputs and outputs by their names. Raises ValueError with one that is not recognised."""
    roles = [(node, _ROLE_OF[node.name]) for node in inputs if node.name in _ROLE_OF]
    pasts = [node for node in inputs if node.name not in _ROLE_OF]
    if unknown := [node for node in pasts if not _may_be_past(node)]:
        raise ValueError(f"input {_described(unknown[0])} is not recognised: expected {_KNOWN}")
    ids = next((node for node, role in roles if role == "ids"), None)
    logits = next((node for node in outputs if node.name == "logits"), None)
    if ids is None or logits is None:
        names = ", ".join(node.name for node in (*inputs, *outputs))
        raise ValueError(f"expected an input input_ids and an output logits, got {names}")
    caches = [_read_cache(past, present, ids, {role for _, role in roles}) for past, present in _pair(pasts, outputs)]
    time = _fixed(ids.shape[-1]) if ids.shape else 1
    if time and time > 1 and any(cache.axis is None for cache in caches):
        raise ValueError(f"input {_described(ids)} reads {time} tokens at once into a past of fixed size: expected 1")
    return Graph(roles, caches, logits, _rows(ids), time, _room(roles, caches, time))


def _may_be_past(node: NodeArg) -> bool:
    words = set(_words(node.name))
    is_decoders = not words & {"encoder", "cross"}
    return node.type.startswith("tensor") and len(node.shape) > 1 and bool(words & _PAST_WORDS) and is_decoders


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower())


def _signature(name: str) -> tuple[str, ...]:
    """The part of a past's name that its present shares: `past_key_values.0.key` -> ("0", "key")."""
    words = _words(name.lower().replace("key_values", ""))
    return tuple(sorted(word for word in words if word not in _SIDE_WORDS))


def _pair(pasts: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> list[tuple[NodeArg, NodeArg]]:
    presents = {_signature(node.name): node for node in outputs}
    if lost := [node for node in pasts if _signature(node.name) not in presents]:
        listed = ", ".join(node.name for node in outputs)
        raise ValueError(f"no output is the present of input {_described(lost[0])}: the outputs are {listed}")
    return [(node, presents[_signature(node.name)]) for node in pasts]


def _read_cache(past: NodeArg, present: NodeArg, ids: NodeArg, roles: set[str]) -> CacheSpec:
    axis = _growing_axis(past, present, ids)
    shape = [_fixed(dim) or (_rows(ids) if _is_batch(past, i, ids) else None) for i, dim in enumerate(past.shape)]
    if axis is not None:
        shape[axis] = 0
    shape = [_fixed(present.shape[i]) if dim is None else dim for i, dim in enumerate(shape)]
    if None in shape:
        raise ValueError(f"input {_described(past)}: its size is open: export the graph with heads and head size fixed")
    keys = len(shape) > 3 and bool(set(_words(past.name)) & (_PAST_WORDS - {"past", "cache", "state", "conv"}))
    rewindable = axis is not None or (keys and bool(roles & {"mask", "last", "total", "past"}))
    return CacheSpec(past.name, present.name, tuple(dim or 0 for dim in shape), axis, rewindable)


def _growing_axis(past: NodeArg, present: NodeArg, ids: NodeArg) -> int | None:
    """The axis of P; None where all but the batch are fixed."""
    if len(past.shape) != len(present.shape):
        raise ValueError(f"output {_described(present)}: expected the rank of input {_described(past)}")
    if any("sliding" in str(dim) for dim in past.shape):
        raise ValueError(f"input {_described(past)}: a sliding past is not supported: export the graph without")
    found = [i for i, dim in enumerate(past.shape) if _fixed(dim) is None and not _is_batch(past, i, ids)]
    found = [i for i in found if "past" in str(past.shape[i])] or found
    found = [i for i in found if past.shape[i] != present.shape[i]] or found
    if len(found) > 1:
        raise ValueError(f"input {_described(past)}: cannot tell which of its dimensions {found} is the past")
    return found[0] if found else None


def _is_batch(node: NodeArg, axis: int, ids: NodeArg) -> bool:
    """Whether an open dimension is B: it is named so, or it has no name and is the first of several."""
    dim = node.shape[axis]
    if _fixed(dim) is not None or len(ids.shape) < 2:
        return False
    if dim:
        return dim == ids.shape[0] or "batch" in str(dim)
    unknown = [i for i, other in enumerate(node.shape) if _fixed(other) is None]
    return ids.shape[0] is None and axis == unknown[0] and (axis == 0 or len(unknown) > 1)


def _room(roles: Sequence[tuple[NodeArg, str]], caches: Sequence[CacheSpec], time: int | None) -> int | None:
    sizes = [_fixed(node.shape[-1]) for node, role in roles if role == "mask"]
    sizes += [cache.empty_shape[-2] for cache in caches if cache.axis is None and cache.rewindable]
    sizes += [] if caches else [time]
    return min((size for size in sizes if size), default=None)


def _rows(ids: NodeArg) -> int:
    return (_fixed(ids.shape[0]) or 1) if len(ids.shape) > 1 else 1


def _fixed(dim: int | str | None) -> int | None:
    return dim if isinstance(dim, int) else None


def _described(node: NodeArg) -> str:
    return f"{node.name!r} ({node.type}, {node.shape})"


DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and beyond that their text degrades
NamedArrays = dict[str, np.ndarray]


class RunInput(NamedTuple):
    """The tokens of one run: read after `past` others, and padded on the right to `time`."""

    ids: Sequence[int]
    past: int
    time: int
    logits_to_keep: int  # last positions of which the logits are needed

    @property
    def total(self) -> int:
        return self.past + len(self.ids)

    @property
    def padding(self) -> int:
        return self.time - len(self.ids)


class GraphEngine:
    """Runs a graph with or without a past. A past that cannot be stored or truncated is computed again from the ids."""

    def __init__(self, session: Session, name: str, context: int | None = None) -> None:
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.fingerprint = session.metadata.get("chatmill.fingerprint", "")
        self.template = session.metadata.get("chatmill.template", "")
        self._session = session
        try:
            self._graph = read_graph(session.session.get_inputs(), session.session.get_outputs())
        except ValueError as error:
            raise ValueError(f"{session.file}: {error}") from error
        self.context = self._context(context)
        self._ids: list[int] = []  # all that were read
        self._cached = 0  # tokens in the past
        self._past = self._empty_past()
        self.vocab_size = self._vocab_size()

    @property
    def length(self) -> int:
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> np.ndarray:
        check_append(self, ids)
        last: np.ndarray = self._read(ids, all_logits=False)[-1]
        return last

    def rewind(self, length: int) -> None:
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

    def _empty_past(self) -> NamedArrays:
        return {cache.past: self._session.zeros(cache.past, cache.empty_shape) for cache in self._graph.caches}

    def _read(self, ids: Sequence[int], *, all_logits: bool) -> np.ndarray:
        """Logits (T, V) of all ids that are not in the past yet; or those of the last run, whose last row counts.

        Where a run fails, the state stays as it was.
        """
        sequence, cached, logits = [*self._ids, *ids], self._cached, []
        past: NamedArrays | None = self._past
        while cached < len(sequence):
            if past is None:
                raise ValueError(
                    f"{self._session.file}: it reads at most {cached} tokens at once, and returns no past to go on from"
                )
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
        feed = {node.name: _value(node, role, run, self._graph) for node, role in self._graph.roles}
        outputs = [self._graph.logits.name, *(cache.present for cache in self._graph.caches)]
        return self._session.run(outputs, feed | past)

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
    if role == "positions" and node.shape in ([], [1]):
        role = "past"  # that of the first token
    values: dict[str, Any] = {
        "ids": [*run.ids, *[0] * run.padding],
        "positions": range(run.past, run.past + run.time),
        "types": [0] * run.time,
        "keep": run.logits_to_keep + run.padding,
        "branch": run.past > 0,
        "last": run.total - 1,
        "total": run.total,
        "past": run.past,
    }
    value = _mask(node, run) if role == "mask" else np.array(values[role])
    leading = node.shape[: max(0, len(node.shape) - value.ndim)]
    rows = [dim if isinstance(dim, int) else graph.batch for dim in leading]
    return np.broadcast_to(value, (*rows, *value.shape))


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
