"""A training step: the loss of its batches, and how this machine computes it fastest.

    loss = sum of weight * (nats + penalty) over all targets of a step / sum of their weights

nats are those of the target, the weight is that of its kind (prompt or trained), and the penalty is what a teacher, a
bag of words and an aligned head add: `ChatModel.nats`.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

import ctypes
import math
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from chatmill.conversation import LossKind
from chatmill.model.chat_model import Answers, ChatModel, SoftTargets
from chatmill.model.layers import Layer, Segments, attend, conversation_mask, find_segments
from chatmill.training.distributed import SINGLE_PROCESS, Group, load_full_state_dict, shard
from chatmill.training.hardware import DTYPES, HardwareSettings, autocast, set_up_compiler
from chatmill.training.optimizer import Optimizers, adamw, default_rate, learning_rate_factor, muon_adamw
from chatmill.training.packing import Batch
from chatmill.training.train_parameters import Precision, TrainParameters

UNTRAINED = -1  # in the place of a target whose loss is not computed
MAX_MASKED_ROW = 1024  # tokens, up to which a mask was found to be faster; its memory grows with the square
TAUGHT_STEPS = 0.7  # share of the steps, in which the weight of a teacher's predictions falls to 0
_TOKENS_PER_ANSWER = 16  # with its question, nearly always more
_ALLOCATOR = {-3: 1 << 30, -1: (1 << 31) - 1}  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h


def keep_freed_memory() -> None:
    """Have malloc reuse freed memory: to return it and to fetch it anew, page by page, takes a third of a step.

    This is a setting of GNU's C library; with others nothing changes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in _ALLOCATOR.items():
            library.mallopt(parameter, value)


def takes_segments(model: ChatModel, device: torch.device, precision: Precision) -> bool:
    """Whether attention is computed in segments, one for each conversation, instead of with a mask over whole rows.

    True on NVIDIA GPUs since Ampere in bfloat16, unless heads have an unusual size, and on a CPU for models with a
    large vocabulary; False with a sliding window. Where a CPU runs compiled layers, `Trainer._loss` makes an exception:
    it uses a mask for rows of up to MAX_MASKED_ROW tokens.
    """
    if model.config.variant.sliding_window:
        return False
    if device.type == "cpu":
        return model.computes_loss_in_blocks
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return precision == "bfloat16" and model.config.head_dim % 8 == 0 and model.config.head_dim <= 256


def find_answers(loss: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(B, T) LossKind of targets -> the fields of Answers: where answers begin, and which one each target belongs to.

    An answer is a run of trained targets after a prompt; a document is none. The places are filled up with zeros, as
    few shapes are then compiled.
    """
    before = np.roll(loss, 1, axis=1)
    before[:, :1] = LossKind.IGNORED
    is_trained = loss == LossKind.TRAINED
    begins = is_trained & (before == LossKind.PROMPT)
    places = np.flatnonzero(begins)
    numbers = np.where(begins, begins.cumsum().reshape(loss.shape), 0).ravel()
    is_first = (is_trained & (before != LossKind.TRAINED)).ravel()
    last_first = np.maximum.accumulate(np.where(is_first, np.arange(loss.size), 0))
    filled = np.zeros(max(loss.size // _TOKENS_PER_ANSWER, 1 << len(places).bit_length()), np.int64)
    filled[1 : len(places) + 1] = places
    return filled, np.where(is_trained, numbers[last_first].reshape(loss.shape), 0)


class LossTotals(NamedTuple):
    """Sums over batches, from which the mean losses follow."""

    weighted_nats: float = 0.0
    weight: float = 0.0
    nats: float = 0.0  # of trained text
    bytes: float = 0.0  # of trained text

    def plus(self, other: "LossTotals") -> "LossTotals":
        return LossTotals(*map(sum, zip(self, other, strict=True)))

    @property
    def loss(self) -> float:
        """The weighted mean loss, in nats a token."""
        return self.weighted_nats / self.weight

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of trained text; None where there is none."""
        return self.nats / (math.log(2) * self.bytes) if self.bytes else None


def total_losses(nats: Tensor, weights: Tensor, num_bytes: Tensor) -> Tensor:
    """Three (B, T) of some targets, of which the last are bytes of trained text -> (4,) float64, their LossTotals."""
    text = nats[num_bytes > 0].double().sum()
    numbers = (nats * weights).sum(), weights.sum(), text, num_bytes.sum()
    return torch.stack([number.double() for number in numbers])


class Trainer:
    """Trains a model for `steps` steps, and evaluates it.

    `num_bytes` (V,) are the bytes of text of each id; `prompt_weight` is the loss weight of prompt tokens. Each process
    of the group gets its own batches, as many as the others; the totals returned are those of all processes, of the
    tokens themselves: what a teacher predicts in their place, with `teacher_weight` at first, is not in them.
    `gradient_norm` is that of the last of the `logged_steps`, counted from 1.
    """

    def __init__(
        self,
        model: ChatModel,
        optimizer: Optimizers,
        num_bytes: Tensor,
        *,
        steps: int,
        prompt_weight: float,
        precision: Precision,
        compiled: bool,
        by_layer: bool = False,
        group: Group = SINGLE_PROCESS,
        teacher_weight: float = 0.0,
    ) -> None:
        self.model, self.optimizer, self.group = model, optimizer, group
        self.num_bytes = num_bytes.to(group.device)
        self.steps, self.completed_steps, self.precision = steps, 0, precision
        self.initial_teacher_weight = teacher_weight
        self.logged_steps: Container[int] = ()
        self.gradient_norm: float | None = None
        self.longest_masked_row = MAX_MASKED_ROW if compiled and group.device.type == "cpu" else 0
        self.has_segments = takes_segments(model, group.device, precision)
        self.loss_weights = torch.zeros(len(LossKind))
        self.loss_weights[LossKind.PROMPT], self.loss_weights[LossKind.TRAINED] = prompt_weight, 1.0
        self.nats = torch.compile(self._nats, dynamic=False) if compiled and not by_layer else self._nats

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        """Make one optimizer step on all of the batches; return the losses before it, over all processes."""
        # By the kinds of the targets, `batch.loss`, before the first backward pass: the mean is over all of the step.
        own_weight = sum(self.loss_weights[torch.from_numpy(batch.loss)].sum().item() for batch in batches)
        total_weight = self.group.total(own_weight)
        numbers = self._zero_totals()
        for batch in batches:
            weighted, nats, weights, num_bytes = self._loss(batch)
            (weighted / total_weight).backward()
            numbers += total_losses(nats, weights, num_bytes)
        self.group.all_reduce_gradients(self.model.parameters())
        sums = LossTotals(*self.group.all_reduce(numbers).tolist())
        if self.completed_steps + 1 in self.logged_steps:
            norm = get_total_norm([weight.grad for weight in self.model.parameters() if weight.grad is not None])
            self.gradient_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.optimizer.step(learning_rate_factor(self.completed_steps, self.steps))
        self.completed_steps += 1
        return sums

    @property
    def teacher_weight(self) -> float:
        """The weight of a teacher's predictions in this step; it falls to 0 in the course of the run."""
        taught = TAUGHT_STEPS * self.steps
        return self.initial_teacher_weight * max(0.0, 1 - self.completed_steps / taught)

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch], sources: Sequence[int] = ()) -> list[LossTotals]:
        """The totals of the batches, without training on them, followed by those of each source by its number."""
        numbers = [self._zero_totals() for _ in (None, *sources)]
        for batch in batches:
            _, nats, weights, num_bytes = self._loss(batch)
            numbers[0] += total_losses(nats, weights, num_bytes)
            for source, of_source in zip(sources, numbers[1:], strict=True):
                chosen = self._to_device(batch.sources) == source
                of_source += total_losses(nats, weights * chosen, num_bytes * chosen)
        return [LossTotals(*self.group.all_reduce(part).tolist()) for part in numbers]

    def state_dict(self) -> dict[str, Any]:
        """The number of steps done, the trained weights and the optimizers' state, whose tensors may be sharded."""
        trained = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        model = {name: weight for name, weight in self.model.state_dict().items() if name in trained}
        return {"done": self.completed_steps, "model": model, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `Group.broadcast` gave; the main process has the full tensors, and sends them."""
        self.completed_steps = state["done"]
        load_full_state_dict(self.model, state["model"], self.group)
        self.optimizer.load_state_dict(state["optimizer"], self.group)

    def _zero_totals(self) -> Tensor:
        return torch.zeros(4, dtype=torch.float64, device=self.group.device)

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss to minimise, and the arguments of `total_losses`."""
        ids, positions, conversations, targets, loss = map(self._to_device, batch[:5])  # loss: the LossKind of each
        visible: Tensor | Segments = conversations
        if self.has_segments and ids.shape[1] > self.longest_masked_row:
            visible = find_segments(batch.conversation_ids).to(ids.device)
        soft_targets = None
        if batch.teacher is not None:
            tokens, chances = map(self._to_device, batch.teacher)
            soft_targets = SoftTargets(tokens, chances, torch.tensor(self.teacher_weight, device=ids.device))
        answers = None
        if self.model.bag_of_words and torch.is_grad_enabled():
            answers = Answers(*map(self._to_device, find_answers(batch.loss)))
        weights = self.loss_weights.to(self.group.device)[loss]
        if self.model.computes_loss_in_blocks and soft_targets is None:
            targets = targets.where(weights > 0, UNTRAINED)
        with autocast(ids.device.type, self.precision):  # not in what is compiled: PyTorch caches no such graph
            nats, penalty = self.nats(ids, positions, visible, targets, soft_targets, answers)
        weighted = (nats * weights).sum()
        num_bytes = self.num_bytes[targets.clamp(0)] * (loss == LossKind.TRAINED)
        if penalty is not None:
            weighted = weighted + (penalty * (weights if penalty.ndim == 2 else weights.sum(dim=1))).sum()
        return weighted, nats.detach(), weights, num_bytes

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.group.device, non_blocking=True)

    def _nats(
        self,
        ids: Tensor,
        positions: Tensor,
        visible: Tensor | Segments,
        targets: Tensor,
        soft_targets: SoftTargets | None,
        answers: Answers | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Four (B, T) -> (B, T) float32, the loss of each target; and the model's auxiliary loss, if any.

        `visible` are the conversations (B, T) that tokens belong to, or their segments.
        """
        mask = visible if isinstance(visible, Segments) else conversation_mask(visible)
        return self.model.nats(ids, positions, mask, targets, soft_targets, answers)


def compile_layers(model: ChatModel, device: torch.device) -> None:
    """Compile each layer; on a CPU without attention to segments, whose lengths differ in each batch."""
    outside = torch.compiler.disable(attend)

    def attend_on_cpu(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Segments | None) -> Tensor:
        return (outside if isinstance(mask, Segments) else attend)(queries, keys, values, mask)

    for layer in model.model.layers:
        assert isinstance(layer, Layer)
        if device.type == "cpu":
            layer.self_attn.attend = attend_on_cpu
        layer.compile(dynamic=False)


def make_trainer(
    model: ChatModel,
    parameters: TrainParameters,
    steps: int,
    hardware: HardwareSettings,
    num_bytes: Tensor,
    group: Group,
) -> Trainer:
    """The trainer of a model, on the device or, sharded, over those of all processes."""
    if hardware.compile and hardware.device == "cpu":
        set_up_compiler()
    load_full_state_dict(model, model.state_dict(), group)
    model.head_alignment = parameters.head_alignment
    is_new = parameters.initial is None
    model.bag_of_words = parameters.bag_of_words if is_new else 0.0
    sharded = parameters.shard and group.size > 1
    # Compiled as a whole, a loss in blocks is compiled anew for each batch, as its number of targets differs.
    by_layer = sharded or model.computes_loss_in_blocks
    if hardware.compile and by_layer:
        compile_layers(model, group.device)
    if sharded:
        shard(model, group)
    model.to(group.device)
    rate = parameters.learning_rate or default_rate(model, is_new=is_new, has_adapters=parameters.lora_rank is not None)
    return Trainer(
        model,
        muon_adamw(model, rate, DTYPES[hardware.precision]) if is_new else adamw(model, rate),
        num_bytes,
        steps=steps,
        prompt_weight=parameters.prompt_loss_weight,
        precision=hardware.precision,
        compiled=hardware.compile,
        by_layer=by_layer,
        group=group,
        teacher_weight=parameters.teacher_weight,
    )
