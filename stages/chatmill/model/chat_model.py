"""A small decoder-only transformer, exactly Qwen3-shaped: its weights carry the names of Qwen3ForCausalLM.

Llama, Mistral and Qwen2 are variants of it.

Shapes: B batch, T time (tokens), S time with the cached past, C channels, D head size, V vocabulary.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chatmill.checkpoints.configuration import ModelConfig, UnsupportedArchitecture, read_config
from chatmill.checkpoints.weights import Weights, read_weights, weight_files
from chatmill.model.layers import EmbeddingTable, KVCache, Layer, Segments, SequenceCache, scale_rope_frequencies
from chatmill.pipeline.manifest import read_json

MAX_WHOLE_VOCAB = 1 << 14  # tokens of a vocabulary, above which the loss is computed in blocks of targets
BLOCK_LOGITS = 1 << 24
INITIAL_ROTARY_POSITIONS = 1 << 15  # at first; the tables grow up to the context


class Decoder(nn.Module):
    """Embedding, layers and the last norm: the part that Qwen3 calls `model`."""

    embed_tokens: EmbeddingTable

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        unfilled = torch.empty(config.vocab_size, config.hidden_size)  # filling it on "meta" takes seconds of imports
        self.embed_tokens = nn.Embedding.from_pretrained(unfilled, freeze=False)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class SoftTargets(NamedTuple):
    """The K likeliest tokens in the place of each target by a teacher; each has a share of the target's loss."""

    tokens: Tensor  # (B, T, K) int64
    chances: Tensor  # (B, T, K) float32
    weight: Tensor  # (), with which the chances are multiplied


class Answers(NamedTuple):
    """Where N answers begin, and which of them each target belongs to; number 0 stands for no answer."""

    begins: Tensor  # (N,) int64, places of targets among all B T
    of_targets: Tensor  # (B, T) int64


class ChatModel(nn.Module):
    """Token ids in, logits of the next token out."""

    lm_head: EmbeddingTable  # if the head is not tied to the embedding
    cos: Tensor  # (positions, D/2), as is sin
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.head_alignment = 0.0  # weight of the distance between head and embedding in the training loss
        self.bag_of_words = 0.0  # weight of the tokens of each answer, in any order, where it begins
        if torch.get_default_device().type != "meta":  # where this, too, takes seconds of imports
            self.build_rotary_tables(INITIAL_ROTARY_POSITIONS)

    @property
    def computes_loss_in_blocks(self) -> bool:
        """Whether the vocabulary is so large that logits are not held whole; targets below 0 are then left out."""
        return self.config.vocab_size > MAX_WHOLE_VOCAB

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | Segments | None = None,
        cache: SequenceCache | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """(B, T) ids -> (B, T, V) logits, or (B, 1, V) of the last position.

        `positions` (B, T), all below S, continue from the cache's length unless given. `mask` (B, 1, T, S) is true
        where a position may attend, or segments say it; without it, attention is causal. `cache` is read and extended.
        """
        table = self.model.embed_tokens.weight
        x = self._hidden_states(ids, table, positions, mask, cache, last_only=last_only)
        return F.linear(x, self._head_weight(table))

    def nats(
        self,
        ids: Tensor,
        positions: Tensor | None,
        mask: Tensor | Segments | None,
        targets: Tensor,
        soft_targets: SoftTargets | None = None,
        answers: Answers | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T) ids and targets -> (B, T) float32, the loss of each target; and the auxiliary loss to add to its mean.

        The auxiliary loss is None, a scalar or, with soft targets or answers, (B, T): what it costs that the
        former are the targets in part, and that all tokens of an answer are predicted where it begins. Where the
        weights are sharded, `training.distributed.shard` has them gathered for this method as for `forward`.
        """
        table = self.model.embed_tokens.weight
        x = self._hidden_states(ids, table, positions, mask, None, last_only=False)
        head = self._head_weight(table)
        penalty = self.head_alignment * distance(head, table) if self.head_alignment else None
        if self.computes_loss_in_blocks and soft_targets is None:
            nats = nats_in_blocks(x.flatten(0, 1), head, targets.flatten()).view(targets.shape)
        else:
            logits = F.linear(x, head).float().flatten(0, 1)
            nats = F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)
        if soft_targets is not None:
            tokens, chances, weight = soft_targets
            own = logits.gather(1, targets.reshape(-1, 1))
            others = logits.gather(1, tokens.flatten(0, 1))
            soft = weight * (chances.flatten(0, 1) * (own - others)).sum(1).view(targets.shape)
            penalty = soft + (0.0 if penalty is None else penalty)
        if answers is not None:
            bag = self.bag_of_words * self._bag_nats(x, head, targets, answers)
            penalty = bag + (0.0 if penalty is None else penalty)
        return nats, penalty

    def _bag_nats(self, x: Tensor, head: Tensor, targets: Tensor, answers: Answers) -> Tensor:
        """(B, T, C), (V, C), (B, T) -> (B, T): the loss of each answer's tokens in a bag of words (arXiv:1703.10960).

        The bag is read from the state before the answer with its channels rolled by half: so it needs no weights of its
        own, and the state says both, the next token and the bag.
        """
        states = x.flatten(0, 1)[answers.begins].roll(x.shape[-1] // 2, -1)
        bags = F.linear(states, head).float().log_softmax(1)
        return -bags[answers.of_targets, targets] * (answers.of_targets > 0)

    def _head_weight(self, table: Tensor) -> Tensor:
        """(V, C) -> (V, C): the weight of the head, which may be the embedding's."""
        return table if self.config.tie_word_embeddings else self.lm_head.weight

    def _hidden_states(
        self,
        ids: Tensor,
        table: Tensor,
        positions: Tensor | None,
        mask: Tensor | Segments | None,
        cache: SequenceCache | None,
        *,
        last_only: bool,
    ) -> Tensor:
        """(B, T), (V, C) -> (B, T, C), or (B, 1, C) of the last position."""
        past, time = (cache.length if cache else 0), ids.shape[1]
        window = self.config.variant.sliding_window or past + time
        if positions is None:
            positions = torch.arange(past, past + time, device=ids.device)[None]
        if mask is None and (past or window < time):
            mask = torch.ones(1, 1, time, past + time, dtype=torch.bool, device=ids.device).tril(past)
        if isinstance(mask, Tensor) and window < past + time:
            mask = mask.triu(past - window + 1)
        if len(self.cos) < min(past + time, self.config.max_position_embeddings):
            self.build_rotary_tables(max(past + time, 2 * len(self.cos)))
            self.to(ids.device)
        rotary = self.cos[positions][:, None], self.sin[positions][:, None]  # (B, 1, T, D/2)
        x = F.embedding(ids, table)
        for layer in self.model.layers:
            x = layer(x, rotary, mask, cache)
        normed: Tensor = self.model.norm(x[:, -1:] if last_only else x)
        return normed

    def new_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for `length` tokens of each of `batch` sequences."""
        return KVCache(self.config, batch, length, self.model.norm.weight)

    def build_rotary_tables(self, length: int) -> None:
        """Tabulate the cosines and sines (length, D/2) of the first positions, at most those of the context."""
        config = self.config
        frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        if config.variant.rope_scaling:
            frequencies = scale_rope_frequencies(frequencies, config.variant.rope_scaling)
        angles = torch.arange(min(length, config.max_position_embeddings))[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)


def nats_in_blocks(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """(N, C), (V, C), (N,) -> (N,) float32: the loss of each target, without all of their logits in memory at once.

    The logits of a block are computed anew for its gradients. The loss of a target below 0 is 0. All blocks have one
    size, so that memory freed by one fits the next: the last repeats the first position, whose losses are then dropped.
    """
    size, places = min(len(x), max(1, BLOCK_LOGITS // len(head))), (targets >= 0).nonzero()[:, 0]
    filled = F.pad(places, (0, -len(places) % size))  # with place 0, whose target may be below 0
    blocks = zip(x[filled].split(size), targets[filled].clamp(0).split(size), strict=True)
    nats = [checkpoint(_block_nats, block, head, ids, use_reentrant=False) for block, ids in blocks]
    return torch.zeros(len(x), device=x.device).index_put((places,), torch.cat(nats)[: len(places)])


def _block_nats(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, head).float(), targets, reduction="none")


def distance(first: Tensor, second: Tensor) -> Tensor:
    """Two (V, C) -> a scalar: the mean square of their difference, divided by the sum of their mean squares."""
    return (first - second).square().mean() / (first.square().mean() + second.square().mean())


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Initialise the weights for training: each layer starts as the identity, as its output matrices are zero.

    Queries are short, so that attention is nearly even at first: what a message is about is then learnt sooner.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(0.3 if "q_norm" in name else 1.0)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        else:
            weight.normal_(std=0.02 if "embed" in name else weight.shape[1] ** -0.5, generator=generator)


# Load a chat model from a checkpoint: a Hugging Face folder, or one file of weights beside its config.json.

CONFIG = "config.json"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


_WRAPPERS = re.compile(r"^(module\.)+|_orig_mod\.")  # what DistributedDataParallel and torch.compile add to names


def load_chat_model(path: Path, device: torch.device) -> tuple[ChatModel, dict[str, Any]]:
    """The model of a folder, or of one file of weights, and the config.json beside it.

    Raises UnsupportedArchitecture for a model that is no variant of ours, and ValueError for a damaged one.
    """
    file = (path if path.is_dir() else path.parent) / CONFIG
    if not file.is_file():
        raise ValueError(f"{file} is missing: it describes the model of the weights")
    try:
        content = read_json(file)
        if not isinstance(content, dict):
            raise ValueError("expected an object")
        config = read_config(content)
    except UnsupportedArchitecture as error:
        raise UnsupportedArchitecture(f"{file}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{file}: not a model configuration: {error}") from error
    return model_from_weights(config, read_weights(weight_files(path)), device, path), content


def model_from_weights(config: ModelConfig, weights: Weights, device: torch.device, path: Path) -> ChatModel:
    """A model with these weights, under our names or those of a wrapper, on the device.

    On the CPU the weights become float32; elsewhere most keep their dtype. `weights` is emptied.
    """
    named = _with_own_names(weights, path)
    if config.num_hidden_layers > len(named):
        raise ValueError(f"{path}: {len(named)} tensors, but config.json says {config.num_hidden_layers} layers")
    if config.tie_word_embeddings and HEAD in named:
        table, head = named.get(f"model.{EMBEDDING}"), named[HEAD]
        if table is not None and table.dtype == head.dtype and torch.equal(table, head):
            del named[HEAD]
        else:  # what transformers does where a config.json contradicts its weights
            config = replace(config, tie_word_embeddings=False)
    with torch.device("meta"):
        model = ChatModel(config)
    placed = {name: _placed(named.pop(name), name, device) for name in list(named)}
    try:
        model.load_state_dict(placed, assign=True)
    except RuntimeError as error:
        _, _, problem = " ".join(str(error).split()).partition(": ")
        raise ValueError(f"{path}: not the weights that its config.json describes: {problem:.400}") from error
    model.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    return model.to(device).eval()


def _with_own_names(weights: Weights, path: Path) -> Weights:
    """The weights under our names. `weights` is emptied.

    Whatever precedes `embed_tokens.weight` is the decoder's name, which becomes `model`; other names stay as they are.
    """
    named: Weights = {}
    bare = {name: _WRAPPERS.sub("", name) for name in weights}
    prefix = next((name.removesuffix(EMBEDDING) for name in bare.values() if name.endswith(EMBEDDING)), "model.")
    for name, plain in bare.items():
        weight = weights.pop(name)
        if plain.endswith("rotary_emb.inv_freq"):
            continue
        ours = HEAD if plain.endswith(HEAD) else f"model.{plain[len(prefix) :]}" if plain.startswith(prefix) else plain
        if ours in named:
            raise ValueError(f"{path}: {ours} occurs twice, once as {name}")
        named[ours] = weight
    return named


def _placed(weight: Tensor, name: str, device: torch.device) -> Tensor:
    """A weight on its device: float32 on a CPU, elsewhere in its own dtype, but float64 as float32.

    Norms of queries and keys are always float32, as their inputs are.
    """
    if not weight.is_floating_point():
        return weight.to(device)
    as_float32 = device.type == "cpu" or name.endswith(("q_norm.weight", "k_norm.weight"))
    return weight.to(device, torch.float32 if as_float32 or weight.dtype == torch.float64 else weight.dtype)
