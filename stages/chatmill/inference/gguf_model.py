"""Open a GGUF file as a model: its weights in PyTorch, its tokenizer and its chat template."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from chatmill.engines.torch.pytorch_engine import PyTorchEngine, resolve_device
from chatmill.gguf_import.gguf_file import read_gguf
from chatmill.gguf_import.shape import read_shape
from chatmill.gguf_import.vocabulary import FIELD, read_vocabulary
from chatmill.gguf_import.weights import read_tensors
from chatmill.inference.model_metadata import ModelMetadata
from chatmill.model.chat_model import ChatModel
from chatmill.model.checkpoint_loading import model_from_weights
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless
from chatmill.tokenizer.vocabulary.steps import adds_prefix_space

END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")  # that end answers in llama.cpp


class GGUFModel(NamedTuple):
    """What a file holds."""

    engine: PyTorchEngine
    tokenizer: ChatTokenizer
    metadata: ModelMetadata


def open_gguf(file: Path, device: str = "auto", threads: int | None = None) -> GGUFModel:
    """Open a file. Quantized weights become float32.

    Raises ValueError for a damaged file, and for an architecture or a tokenizer that chatmill does not have.
    """
    check_manifest(file.parent)
    content = read_gguf(file)
    fields = content.fields
    try:
        config, vocabulary = read_shape(content), read_vocabulary(fields)
        if config.vocab_size < len(vocabulary.tokens):
            raise ValueError(f"{len(vocabulary.tokens):,} tokens, but embeddings of {config.vocab_size:,}")
        with torch.device("meta"):
            names = list(ChatModel(config).state_dict())
        weights = read_tensors(content, config, names)
        expected = fields.get("chatmill.fingerprint", vocabulary.fingerprint)
        if vocabulary.fingerprint != expected:
            raise ValueError("its tokenizer is not the one the model was trained with: make the file anew")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    model = model_from_weights(config, weights, resolve_device(device), file)
    template = str(fields.get("chatmill.template", ""))
    engine = PyTorchEngine(
        model,
        fingerprint=str(fields.get("chatmill.fingerprint", "")),
        template=template,
        device=device,
        threads=threads,
    )
    leading_space = adds_prefix_space(vocabulary.steps)
    tokenizer = ChatTokenizer(make_lossless(vocabulary), leading_space=leading_space)
    return GGUFModel(engine, tokenizer, _metadata(fields, tokenizer, config.max_position_embeddings))


def _metadata(fields: dict[str, Any], tokenizer: ChatTokenizer, context: int) -> ModelMetadata:
    """What llama.cpp takes from the fields: the token that begins a text, and those that end an answer."""
    jinja = fields.get("tokenizer.chat_template", "")
    jinja = jinja if isinstance(jinja, str) else ""
    ids = {kind: fields.get(f"{FIELD}{kind}_token_id") for kind in ("bos", "eos", "eot", "eom")}
    known = {kind: i for kind, i in ids.items() if type(i) is int and 0 <= i < len(tokenizer.vocabulary.tokens)}
    bos = known.pop("bos", None)
    name = next((name for name, i in tokenizer.special.items() if i == bos), "")
    if jinja:
        begins = "bos_token" in jinja or (bool(name) and name in jinja)
    else:
        begins = bool(fields.get(f"{FIELD}add_bos_token", fields.get(f"{FIELD}model") == "llama"))
    named = {tokenizer.special[token] for token in END_TOKENS if token in tokenizer.special}
    tools = fields.get("chatmill.tools", [])
    return ModelMetadata(
        context=context,
        bos_id=bos if begins else None,
        stop_ids=frozenset(known.values()) | frozenset(named),
        chat_template=jinja,
        tools=tuple(map(str, tools)) if isinstance(tools, list) else (),
    )
