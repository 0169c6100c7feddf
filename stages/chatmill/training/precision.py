"""The number formats of training. To add one, add a line here and its name to `Precision`.

If `auto` may choose it, extend `choose_precision` and `choose_compile`, too. A format whose smallest numbers are larger
than those of float32 needs loss scaling in `Trainer.step`; `Muon` casts momentum before it normalises.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from chatmill.training.distributed import DeviceKind
from chatmill.training.processor import Processor, own_processor
from chatmill.training.train_parameters import Precision


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """The properties of a precision."""

    dtype: torch.dtype  # of the products; weights, gradients and sums are float32
    muon_bytes: int  # bytes per weight during Muon's step


NUMBER_FORMATS: dict[Precision, NumberFormat] = {
    "float32": NumberFormat(torch.float32, 40),
    "bfloat16": NumberFormat(torch.bfloat16, 28),
}


def choose_precision(
    precision: Literal["auto", Precision], device: DeviceKind = "cpu", processor: Processor | None = None
) -> Precision:
    """The given precision; for `auto` bfloat16 if the GPU has it or the processor, by default this one, gains by it."""
    if precision != "auto":
        return precision
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if (processor or own_processor()).gains_by_bfloat16 else "float32"


def autocast(device: str, precision: Precision) -> torch.autocast:
    """A context in which products are computed in a precision."""
    lower = precision != "float32"
    return torch.autocast(device, NUMBER_FORMATS[precision].dtype if lower else torch.bfloat16, enabled=lower)
