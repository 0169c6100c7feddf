"""ONNX graphs that name their inputs, outputs and caches as Hugging Face's exporters do.

Shapes: B batch, T time (tokens given), P past, S = P + T, H heads, D head size, V vocabulary.
"""

import re
from collections.abc import Sequence

import numpy as np

from chatmill.engines.onnx_engine import Session

DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and beyond that their text degrades
_TOKENS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")  # (B, T), and (B, S) for the mask
_SCALARS = ("use_cache_branch", "num_logits_to_keep", "logits_to_keep")  # () or (1,)
# (B, H, P, D) each, or in older graphs keys and values as one: (2, B, H, P, D)
_PAST = re.compile(r"past_key_values\.\d+\.(key|value)|past_\d+")
_KNOWN = f"{', '.join((*_TOKENS, *_SCALARS))}, past_key_values.0.key and .value ..., or past_0 ..."

NamedArrays = dict[str, np.ndarray]


class GraphCache:
    """A graph with or without a cache. Without one, each call reads all tokens again."""

    def __init__(self, session: Session, context: int | None = None) -> None:
        """Raises ValueError with the input that is not known."""
        self.device, self.num_bytes, self._session = session.device, session.num_bytes, session
        self.context = context or int(session.metadata.get("chatmill.context", DEFAULT_CONTEXT))
        outputs = {node.name: node for node in session.session.get_outputs()}
        pasts = [name for name in session.inputs if _PAST.fullmatch(name)]
        self._presents = {past: re.sub("past(_key_values)?", "present", past) for past in pasts}
        if "input_ids" not in session.inputs or not {"logits", *self._presents.values()} <= outputs.keys():
            wanted, names = ", ".join(["logits", *self._presents.values()]), ", ".join((*session.inputs, *outputs))
            raise ValueError(f"{session.file}: expected an input input_ids and the outputs {wanted}, got {names}")
        if unknown := [name for name in session.inputs if name not in (*pasts, *_TOKENS, *_SCALARS)]:
            raise ValueError(f"{session.file}: input {unknown[0]!r} is not recognised: expected {_KNOWN}")
        self._past = {past: np.zeros(self._empty_shape(past), session.dtypes[past]) for past in pasts}
        self._ids: list[int] = []  # all that were read
        width = outputs["logits"].shape[-1]
        self.vocab_size: int = width if isinstance(width, int) else self._run([0], self._past, 0, keep=1)[0].shape[-1]

    def with_rows(self, rows: int) -> None:
        """A graph reads one sequence at a time."""

    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        logits = self._read(ids, past, keep=len(ids) if all_logits else 1)
        if all_logits and len(logits) < len(ids):  # the graph returns those of the last position only
            return np.concatenate([self._read([token], past + i, keep=1) for i, token in enumerate(ids)])
        return logits if all_logits else logits[-1:]

    def _read(self, ids: Sequence[int], length: int, *, keep: int) -> np.ndarray:
        """Read ids after the first `length` tokens: the logits of the last run. Where a run fails, the state stays."""
        sequence = [*self._ids[:length], *ids]
        past = {name: np.ascontiguousarray(past[..., :length, :]) for name, past in self._past.items()}
        start = length if self._presents else 0
        # the branch for tokens after a past may have been traced with a single one
        step = 1 if "use_cache_branch" in self._session.inputs and start else len(sequence)
        for first in range(start, len(sequence), step):
            logits, past = self._run(sequence[first : first + step], past, first, keep)
        self._ids, self._past = sequence, past
        return logits

    def _run(self, ids: Sequence[int], past: NamedArrays, first: int, keep: int) -> tuple[np.ndarray, NamedArrays]:
        """Read ids from position `first` on: logits (T, V), or of the last `keep` positions only, and the next past."""
        total, inputs = first + len(ids), self._session.inputs
        tokens = {
            "input_ids": np.array(ids),
            "attention_mask": np.ones(total),
            "position_ids": np.arange(first, total),
            "token_type_ids": np.zeros(len(ids)),
        }
        scalars = {"use_cache_branch": first > 0, "num_logits_to_keep": keep, "logits_to_keep": keep}
        feed = {name: row[None] for name, row in tokens.items() if name in inputs}
        feed |= {name: np.full([1] * len(inputs[name].shape), scalars[name]) for name in _SCALARS if name in inputs}
        outputs = self._session.run(["logits", *self._presents.values()], feed | past)
        for present in self._presents.values():
            if outputs[present].shape[-2] != total:
                found = f"expected a present of {total} tokens, got the shape {outputs[present].shape}"
                raise ValueError(f"{self._session.file}: output {present!r}: {found}")
        logits = outputs["logits"]
        rows = logits.reshape(-1, logits.shape[-1]).astype(np.float32)
        return rows, {name: outputs[present] for name, present in self._presents.items()}

    def _empty_shape(self, past: str) -> list[int]:
        """The shape before the first token, where B = 1 and P = 0."""
        shape = list(self._session.inputs[past].shape)
        if len(shape) not in (4, 5) or not all(isinstance(size, int) for size in (*shape[:-4], shape[-3], shape[-1])):
            expected = "(batch, heads, past, size), with heads and size fixed"
            raise ValueError(f"{self._session.file}: input {past!r} is {shape}: expected {expected}")
        return [*shape[:-4], 1, shape[-3], 0, shape[-1]]
