"""The roles of the inputs and outputs of a decoder's graph, by their names and shapes.

Shapes: B batch, T time (tokens given), P past, S = P + T, H heads, D head size, V vocabulary. A dimension that a graph
leaves open is a name or None.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
_FLOATS = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"}
_INTEGERS = {"tensor(int32)", "tensor(int64)"}


class NodeArg(Protocol):
    """An input or an output, as ONNX Runtime describes it."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A past that is passed in and returned as the present."""

    past: str
    present: str
    type: str
    empty_shape: tuple[int | None, ...]  # its shape before the first token; None where only a run shows it
    axis: int | None  # along which it grows by T; None if its size is fixed
    rewindable: bool  # whether later tokens in it can be removed, or are masked


@dataclass(frozen=True, slots=True)
class Graph:
    """A decoder's graph: what to feed it, and where its logits are."""

    roles: list[tuple[NodeArg, str]]
    caches: list[CacheSpec]
    logits: NodeArg
    batch: int  # rows that it reads
    time: int | None  # tokens that it reads at once; None for any number
    context: int | None  # tokens that fit into its fixed shapes; None for any number


def read_graph(inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> Graph:
    """Find the roles of a graph's inputs and outputs. Raises ValueError with the one that is not recognised."""
    roles = [(node, _ROLE_OF[node.name]) for node in inputs if node.name in _ROLE_OF]
    others = [node for node in inputs if node.name not in _ROLE_OF]
    if not any(role == "ids" for _, role in roles):
        ids = _only_ids(others, inputs)
        roles.append((ids, "ids"))
        others.remove(ids)
    if unknown := [node for node in others if not _may_be_past(node)]:
        raise ValueError(f"input {_described(unknown[0])} is not recognised: expected {_KNOWN}")
    ids = next(node for node, role in roles if role == "ids")
    logits = _find_logits(others, outputs)
    pairs = _pair(others, [node for node in outputs if node is not logits])
    caches = [_read_cache(past, present, ids, {role for _, role in roles}) for past, present in pairs]
    time = _fixed(ids.shape[-1]) if ids.shape else 1
    if time and time > 1 and any(cache.axis is None for cache in caches):
        raise ValueError(f"input {_described(ids)} reads {time} tokens at once into a past of fixed size: expected 1")
    return Graph(roles, caches, logits, _rows(ids), time, _room(roles, caches, time))


def _only_ids(others: Sequence[NodeArg], inputs: Sequence[NodeArg]) -> NodeArg:
    """The only input that can be the token ids, whatever its name."""
    found = [node for node in others if node.type in _INTEGERS and len(node.shape) in (1, 2)]
    if len(found) != 1:
        listed = ", ".join(_described(node) for node in inputs) or "none"
        raise ValueError(f"no input is input_ids, nor the only one of integers (batch, time): the inputs are {listed}")
    return found[0]


def _may_be_past(node: NodeArg) -> bool:
    words = set(_words(node.name))
    return node.type.startswith("tensor") and len(node.shape) > 1 and bool(words & _PAST_WORDS) and _of_decoder(words)


def _of_decoder(words: set[str]) -> bool:
    return not words & {"encoder", "cross"}


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower())


def _signature(name: str) -> tuple[str, ...]:
    """The part of a past's name that its present shares: `past_key_values.0.key` -> ("0", "key")."""
    words = _words(name.lower().replace("key_values", ""))
    return tuple(sorted(word for word in words if word not in _SIDE_WORDS))


def _find_logits(pasts: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> NodeArg:
    """The output `logits`, else the widest output (B, T, V) that is no present."""
    if named := [node for node in outputs if node.name == "logits" and node.shape]:
        return named[0]
    taken = {_signature(node.name) for node in pasts}
    found = [node for node in outputs if node.type in _FLOATS and len(node.shape) in (2, 3)]
    found = [node for node in found if _signature(node.name) not in taken and not re.search("hidden|pool", node.name)]
    widest = max((_fixed(node.shape[-1]) or 0 for node in found), default=0)
    found = [node for node in found if len(found) == 1 or _fixed(node.shape[-1]) == widest]
    if len(found) != 1:
        listed = ", ".join(_described(node) for node in outputs)
        raise ValueError(f"no output can be the logits (batch, time, vocabulary): the outputs are {listed}")
    return found[0]


def _pair(pasts: Sequence[NodeArg], presents: Sequence[NodeArg]) -> list[tuple[NodeArg, NodeArg]]:
    """Each past with its present: by name, else by order where there are as many of each type and rank."""
    signatures = [_signature(node.name) for node in presents]
    if all(signatures.count(_signature(node.name)) == 1 for node in pasts):
        return [(node, presents[signatures.index(_signature(node.name))]) for node in pasts]
    if [(node.type, len(node.shape)) for node in pasts] == [(node.type, len(node.shape)) for node in presents]:
        return list(zip(pasts, presents, strict=True))
    lost = next(node for node in pasts if signatures.count(_signature(node.name)) != 1)
    listed = ", ".join(node.name for node in presents) or "none"
    raise ValueError(f"no output is the present of input {_described(lost)}: the other outputs are {listed}")


def _read_cache(past: NodeArg, present: NodeArg, ids: NodeArg, roles: set[str]) -> CacheSpec:
    """The shape of an empty past, and how it grows."""
    axis = _growing_axis(past, present, ids)
    shape = [_fixed(dim) or (_rows(ids) if _is_batch(past, i, ids) else None) for i, dim in enumerate(past.shape)]
    if axis is not None:
        shape[axis] = 0
    shape = [_fixed(present.shape[i]) if dim is None else dim for i, dim in enumerate(shape)]
    keys = len(shape) > 3 and bool(set(_words(past.name)) & (_PAST_WORDS - {"past", "cache", "state", "conv"}))
    has_length_input = bool(roles & {"mask", "last", "total", "past"})
    return CacheSpec(
        past.name, present.name, past.type, tuple(shape), axis, axis is not None or (keys and has_length_input)
    )


def _growing_axis(past: NodeArg, present: NodeArg, ids: NodeArg) -> int | None:
    """The axis of P; None where all but the batch are fixed."""
    if len(past.shape) != len(present.shape):
        raise ValueError(f"output {_described(present)}: expected the rank of input {_described(past)}")
    if any("sliding" in str(dim) for dim in past.shape):
        raise ValueError(f"input {_described(past)}: a sliding past is not supported: export the graph without")
    found = [i for i, dim in enumerate(past.shape) if _fixed(dim) is None and not _is_batch(past, i, ids)]
    for choose in (_named_past, _changed):
        found = [i for i in found if choose(past.shape[i], present.shape[i])] or found
    if len(found) > 1:
        raise ValueError(f"input {_described(past)}: cannot tell which of its dimensions {found} is the past")
    fixed = [(i, a, b) for i, (a, b) in enumerate(zip(past.shape, present.shape, strict=True)) if _fixed(a)]
    if not found and any(_fixed(b) and a != b for _, a, b in fixed):
        raise ValueError(f"input {_described(past)}: its past has another fixed length than that of {present.name}")
    return found[0] if found else None


def _named_past(past: int | str | None, present: int | str | None) -> bool:
    return "past" in str(past)


def _changed(past: int | str | None, present: int | str | None) -> bool:
    return past != present


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
    """The tokens that fit into a graph's fixed shapes."""
    sizes = [_fixed(node.shape[-1]) for node, role in roles if role == "mask"]
    sizes += [cache.empty_shape[-2] for cache in caches if cache.axis is None and cache.rewindable]
    sizes += [] if caches else [time]
    return min((size for size in sizes if size), default=None)


def _rows(ids: NodeArg) -> int:
    """How many sequences the graph reads at once."""
    return (_fixed(ids.shape[0]) or 1) if len(ids.shape) > 1 else 1


def _fixed(dim: int | str | None) -> int | None:
    return dim if isinstance(dim, int) else None


def _described(node: NodeArg) -> str:
    return f"{node.name!r} ({node.type}, {node.shape})"
