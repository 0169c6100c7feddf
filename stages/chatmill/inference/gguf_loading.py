"""Open a GGUF file as a model: its engine, its tokenizer, and what its fields say of chats."""

from pathlib import Path
from typing import Any

import torch

from chatmill.engines.engine import Engine
from chatmill.engines.pytorch_engine import PyTorchEngine, resolve_device
from chatmill.gguf_import import read_shape, read_tensors
from chatmill.inference.model_metadata import ModelMetadata
from chatmill.model.chat_model import ChatModel, model_from_weights
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.gguf_files import FIELD, read_gguf, vocabulary_of
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless
from chatmill.tokenizer.vocabulary.preprocessing import adds_prefix_space

END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")  # that end answers in llama.cpp


def open_gguf(file: Path, device: str, threads: int | None) -> tuple[Engine, ChatTokenizer, ModelMetadata]:
    """Open a file, whose quantized weights become float32. Raises ValueError for one that chatmill cannot read."""
    check_manifest(file.parent)
    content = read_gguf(file)
    fields = content.fields
    try:
        config, vocabulary = read_shape(content), vocabulary_of(fields)
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
    origin = {name: str(fields.get(f"chatmill.{name}", "")) for name in ("fingerprint", "template")}
    engine = PyTorchEngine(model, **origin, device=device, threads=threads)
    leading_space = adds_prefix_space(vocabulary.steps)
    tokenizer = ChatTokenizer(make_lossless(vocabulary), leading_space=leading_space)
    return engine, tokenizer, _metadata(fields, tokenizer, config.max_position_embeddings)


def _metadata(fields: dict[str, Any], tokenizer: ChatTokenizer, context: int) -> ModelMetadata:
    """What llama.cpp takes from the fields: the token that begins a text, and those that end an answer."""
    jinja = fields.get("tokenizer.chat_template", "")
    jinja = jinja if isinstance(jinja, str) else ""
    ids = {kind: fields.get(f"{FIELD}{kind}_token_id") for kind in ("bos", "eos", "eot", "eom")}
    known = {kind: i for kind, i in ids.items() if type(i) is int and 0 <= i < len(tokenizer.vocabulary.tokens)}
    named_ids = {kind: i for kind, i in known.items() if kind in ("bos", "eos")}
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
        names={f"{kind}_token": tokenizer.token_bytes[i].decode(errors="replace") for kind, i in named_ids.items()},
    )
