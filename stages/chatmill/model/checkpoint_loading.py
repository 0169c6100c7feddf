"""Load a chat model from a checkpoint: a Hugging Face folder, or one file of weights beside its config.json."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig, UnsupportedArchitecture, read_config
from chatmill.checkpoints.weights import FLOATS, Weights, first_few, read_weights, weight_files
from chatmill.conversation import BOS, IM_END, PAD
from chatmill.model.chat_model import INITIAL_ROTARY_POSITIONS, ChatModel
from chatmill.pipeline.manifest import read_json

CONFIG = "config.json"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
MAX_CONFIG_BYTES = 1 << 22

_WRAPPERS = re.compile(r"^(module\.)+|_orig_mod\.")  # what DistributedDataParallel and torch.compile add to names


def load_chat_model(path: Path, device: torch.device) -> tuple[ChatModel, dict[str, Any]]:
    """The model of a folder, or of one file of weights, and the config.json beside it.

    Raises UnsupportedArchitecture for a model that is no variant of ours, and ValueError for a damaged one.
    """
    file = (path if path.is_dir() else path.parent) / CONFIG
    if not file.is_file():
        raise ValueError(f"{file} is missing: it describes the model of the weights")
    content = _read_json(file)
    try:
        config = read_config(content)
    except UnsupportedArchitecture as error:
        raise UnsupportedArchitecture(f"{file}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{file}: not a model configuration: {error}") from error
    return model_from_weights(config, read_weights(weight_files(path)), device, path), content


def stand_ins(content: dict[str, Any], num_rows: int) -> dict[str, int]:
    """The ids by which a model of `num_rows` ids begins and ends a text, for our control tokens of the same purpose.

    `content` is its config.json.
    """
    end = _first(content.get("eos_token_id"), num_rows)
    begin = _first(content.get("bos_token_id"), num_rows)
    found = {BOS: end if begin is None else begin, IM_END: end, PAD: end}  # the end token stands between texts, too
    return {name: i for name, i in found.items() if i is not None}


def _first(ids: Any, num_rows: int) -> int | None:
    """The first of one or more ids; None where it is no row."""
    first = ids[0] if isinstance(ids, list) and ids else ids
    return first if type(first) is int and 0 <= first < num_rows else None


def model_from_weights(config: ModelConfig, weights: Weights, device: torch.device, path: Path) -> ChatModel:
    """A model with these weights, under our names or those of a wrapper, on the device.

    On the CPU the weights become float32, elsewhere they keep their dtype. `weights` is emptied.
    """
    named = _with_own_names(weights, path)
    if config.num_hidden_layers > len(named):
        raise ValueError(f"{path}: {len(named)} tensors, but config.json says {config.num_hidden_layers} layers")
    if config.tie_word_embeddings and HEAD in named:
        if _equal(named[HEAD], named.get(f"model.{EMBEDDING}")):
            del named[HEAD]
        else:  # what transformers does where a config.json contradicts its weights
            config = replace(config, tie_word_embeddings=False)
    with torch.device("meta"):
        model = ChatModel(config)
    _check_weights(model.state_dict(), named, path)
    placed = {name: _placed(named.pop(name), name, device) for name in list(named)}
    model.load_state_dict(placed, assign=True)
    if config.byte_head:
        model.byte_head.check(path)
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


def _check_weights(expected: Weights, found: Weights, path: Path) -> None:
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    other_shape = [
        f"{name} {tuple(found[name].shape)} where {tuple(weight.shape)} is expected"
        for name, weight in expected.items()
        if name in found and found[name].shape != weight.shape
    ]
    dtypes = {name: (found[name].dtype, expected[name].dtype) for name in expected.keys() & found}
    other_dtype = [
        f"{name} {dtype} where {wanted} is expected"
        for name, (dtype, wanted) in dtypes.items()
        if dtype != wanted and not {dtype, wanted} <= {*FLOATS}
    ]
    groups = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": other_shape,
        "of another dtype": other_dtype,
    }
    if any(groups.values()):
        problems = "; ".join(f"{len(names)} {what}: {first_few(names)}" for what, names in groups.items() if names)
        raise ValueError(f"{path}: not the weights that its config.json describes: {problems}")


def _equal(weight: Tensor, other: Tensor | None) -> bool:
    return other is not None and weight.dtype == other.dtype and torch.equal(weight, other)


def _placed(weight: Tensor, name: str, device: torch.device) -> Tensor:
    """A weight on its device; norms of queries and keys are float32 everywhere, as their inputs are."""
    if not weight.is_floating_point():
        return weight.to(device)
    exact = device.type == "cpu" or name.endswith(("q_norm.weight", "k_norm.weight"))
    return weight.to(device, torch.float32 if exact or weight.dtype == torch.float64 else weight.dtype)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file, MAX_CONFIG_BYTES)
    except ValueError as error:
        raise ValueError(f"{file}: not a model configuration: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: not a model configuration: expected an object")
    return content
