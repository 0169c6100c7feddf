"""The engine of ONNX graphs that name their inputs, outputs and caches as Hugging Face's exporters do.

Shapes: B batch, T time (tokens given), P past, S = P + T, H heads, D head size, V vocabulary.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from chatmill.engines.engine import check_append, check_rewind
from chatmill.engines.onnx_engine import Session

DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and beyond that their text degrades
_TOKENS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")  # (B, T), and (B, S) for the mask
_SCALARS = ("use_cache_branch", "num_logits_to_keep", "logits_to_keep")  # () or (1,)
# (B, H, P, D) each, or in older graphs keys and values as one: (2, B, H, P, D)
_PAST = re.compile(r"past_key_values\.\d+\.(key|value)|past_\d+")
_KNOWN = f"{', '.join((*_TOKENS, *_SCALARS))}, past_key_values.0.key and .value ..., or past_0 ..."

NamedArrays = dict[str, np.ndarray]


class NodeArg(Protocol):
    """An input or output of a graph. A size that is open is a name or None."""

    name: str
    type: str
    shape: list[int | str | None]


class GraphEngine:
    """Runs a graph with or without a cache. Without one, each call reads all tokens again."""

    def __init__(self, session: Session, name: str, context: int | None = None) -> None:
        """Raises ValueError with the input that is not known, or has another shape."""
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.fingerprint = session.metadata.get("chatmill.fingerprint", "")
        self.template = session.metadata.get("chatmill.template", "")
        self.context = context or int(session.metadata.get("chatmill.context", DEFAULT_CONTEXT))
        self._session = session
        self._inputs: dict[str, NodeArg] = {node.name: node for node in session.session.get_inputs()}
        outputs: dict[str, NodeArg] = {node.name: node for node in session.session.get_outputs()}
        pasts = [name for name in self._inputs if _PAST.fullmatch(name)]
        self._presents = {past: re.sub("past(_key_values)?", "present", past) for past in pasts}
        try:
            _check_names(self._inputs, outputs, self._presents)
            shapes = {past: _empty_shape(self._inputs[past]) for past in pasts}
        except ValueError as error:
            raise ValueError(f"{session.file}: {error}") from error
        self._past = {past: session.zeros(past, shape) for past, shape in shapes.items()}
        self._ids: list[int] = []  # all that were read
        width = outputs["logits"].shape[-1]
        self.vocab_size = width if isinstance(width, int) else self._run([0], self._past, 0, keep=1)[0].shape[-1]

    @property
    def length(self) -> int:
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> np.ndarray:
        check_append(self, ids)
        last: np.ndarray = self._read(ids, keep=1)[-1]
        return last

    def rewind(self, length: int) -> None:
        check_rewind(self, length)
        del self._ids[length:]
        self._past = {name: np.ascontiguousarray(past[..., :length, :]) for name, past in self._past.items()}

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        self.rewind(0)
        check_append(self, ids)
        logits = self._read(ids, keep=len(ids))
        self.rewind(0)
        if len(logits) < len(ids):  # the graph returns those of the last position only
            logits = np.stack([self.append([token]) for token in ids])
            self.rewind(0)
        return logits

    def _read(self, ids: Sequence[int], *, keep: int) -> np.ndarray:
        """Read ids after those that were read: the logits of the last run. Where a run fails, the state stays."""
        sequence, past = [*self._ids, *ids], self._past
        start = len(self._ids) if self._presents else 0
        # the branch for tokens after a past may have been traced with a single one
        step = 1 if "use_cache_branch" in self._inputs and start else len(sequence)
        for first in range(start, len(sequence), step):
            logits, past = self._run(sequence[first : first + step], past, first, keep)
        self._ids, self._past = sequence, past
        return logits

    def _run(self, ids: Sequence[int], past: NamedArrays, first: int, keep: int) -> tuple[np.ndarray, NamedArrays]:
        """Read ids from position `first` on: logits (T, V), or of the last `keep` positions only, and the next past."""
        total = first + len(ids)
        tokens = {
            "input_ids": np.array(ids),
            "attention_mask": np.ones(total),
            "position_ids": np.arange(first, total),
            "token_type_ids": np.zeros(len(ids)),
        }
        scalars = {"use_cache_branch": first > 0, "num_logits_to_keep": keep, "logits_to_keep": keep}
        feed = {name: row[None] for name, row in tokens.items() if name in self._inputs}
        for name, value in scalars.items():
            if name in self._inputs:
                feed[name] = np.full([1] * len(self._inputs[name].shape), value)
        outputs = self._session.run(["logits", *self._presents.values()], feed | past)
        logits = outputs["logits"]
        for present in self._presents.values():
            if outputs[present].shape[-2] != total:
                found = f"expected a present of {total} tokens, got the shape {outputs[present].shape}"
                raise ValueError(f"{self._session.file}: output {present!r}: {found}")
        rows = logits.reshape(-1, logits.shape[-1]).astype(np.float32)
        return rows, {name: outputs[present] for name, present in self._presents.items()}


def _check_names(inputs: Mapping[str, NodeArg], outputs: Mapping[str, NodeArg], presents: Mapping[str, str]) -> None:
    """Raise ValueError for an input that is not known or not (B, T), or a past whose present is not an output."""
    if "input_ids" not in inputs or "logits" not in outputs:
        names = ", ".join((*inputs, *outputs))
        raise ValueError(f"expected an input input_ids and an output logits, got {names}")
    for name, node in inputs.items():
        if name in presents:
            if presents[name] not in outputs:
                raise ValueError(f"input {_described(node)}: expected an output {presents[name]!r}")
        elif name in _TOKENS:
            if len(node.shape) != 2 or not _is_batch(node.shape[0]) or isinstance(node.shape[1], int):
                raise ValueError(f"input {_described(node)}: expected (batch, time), with the time open")
        elif name not in _SCALARS:
            raise ValueError(f"input {_described(node)} is not recognised: expected {_KNOWN}")


def _empty_shape(past: NodeArg) -> list[int]:
    """The shape before the first token, where B = 1 and P = 0. Raises ValueError for other axes than those of _PAST."""
    shape = list(past.shape)
    if len(shape) in (4, 5) and _is_batch(shape[-4]) and not isinstance(shape[-2], int):
        shape[-4], shape[-2] = 1, 0
    fixed = [dim for dim in shape if isinstance(dim, int)]
    if len(fixed) < len(shape) or 0 not in fixed:
        expected = "(batch, heads, past, size), with heads and size fixed, batch and past open"
        raise ValueError(f"input {_described(past)}: expected {expected}")
    return fixed


def _is_batch(dim: int | str | None) -> bool:
    return dim == 1 or not isinstance(dim, int)


def _described(node: NodeArg) -> str:
    return f"{node.name!r} ({node.type}, {node.shape})"
