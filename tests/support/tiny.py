"""A tokenizer of bytes and a model of a few thousand weights."""

import json

import torch
from safetensors.torch import save_file

from chatmill.checkpoints.configuration import ModelConfig, to_hugging_face
from chatmill.conversation import BOS, IM_END, PAD
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types.byte import Settings, train
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder

VOCABULARY = add_special_tokens(train([], 256, Settings()), [])
CONFIG = ModelConfig(
    vocab_size=len(VOCABULARY.tokens),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=640,
)


def byte_tokenizer():
    return ChatTokenizer(VOCABULARY)


def random_model(config=CONFIG):
    """An untrained model whose weights are large enough to distinguish positions."""
    generator = torch.Generator().manual_seed(0)
    model = ChatModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.1 * noise if weight.ndim == 1 else noise / weight.shape[1] ** 0.5)
    return model.eval()


def write_model(folder, config=CONFIG, template="chatml"):
    """Write a folder as train_model does."""
    write_folder(VOCABULARY, folder)
    model = random_model(config)
    save_file(model.state_dict(), folder / "model.safetensors")
    chatmill = {"fingerprint": VOCABULARY.fingerprint, "template": template}
    (folder / "config.json").write_text(json.dumps(to_hugging_face(config) | {"chatmill": chatmill}))
    special = VOCABULARY.special
    ids = {"bos_token_id": special[BOS], "eos_token_id": special[IM_END], "pad_token_id": special[PAD]}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    write_manifest(folder, kind="model", fingerprint=VOCABULARY.fingerprint)
    return folder
