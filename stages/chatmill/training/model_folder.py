"""A trained model as a folder that Hugging Face's libraries read, with the byte encoder of its embeddings, if any.

model.safetensors         the weights; embeddings computed from bytes are stored as a table
config.json               the shape; its section `chatmill` records how the model was trained
byte_encoder.safetensors  the network that computes embeddings from bytes; its shape is `chatmill.byte_encoder`
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chatmill.checkpoints.architectures import to_hugging_face
from chatmill.checkpoints.weights import SUFFIXES
from chatmill.conversation.chatml import BOS, CALL_END, IM_END, PAD
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.manifest import MANIFEST_NAME, write_manifest
from chatmill.tokenizer.vocabulary.huggingface import CHAT_TEMPLATES, write_huggingface
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape

ENCODER_FILE = "byte_encoder.safetensors"


def write_model(
    folder: Path,
    model: ChatModel,
    tokenizer: Path,
    vocabulary: Vocabulary,
    metadata: dict[str, Any],
    encoder: ByteEncoder | None = None,
) -> None:
    """Write the model and its tokenizer; `metadata` records how it was trained, and with which template."""
    folder.mkdir()
    write_huggingface(tokenizer, folder, metadata["template"], model.config.max_position_embeddings)
    ids = {
        f"{name}_token_id": vocabulary.special[token] for name, token in (("bos", BOS), ("eos", IM_END), ("pad", PAD))
    }
    metadata = {"fingerprint": vocabulary.fingerprint, **metadata}
    if encoder is not None:
        metadata["byte_encoder"] = asdict(encoder.shape)
        save_weights(encoder.state_dict(), folder / ENCODER_FILE)
    config = {**to_hugging_face(model.config), **ids, "chatmill": metadata}
    ends = [vocabulary.special[IM_END], *([vocabulary.special[CALL_END]] if metadata.get("tools") else [])]
    generation = ids | {"eos_token_id": ends if len(ends) > 1 else ends[0]}  # a call's end, too: the caller runs it
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_weights(model.state_dict(), folder / "model.safetensors")
    write_manifest(folder, kind="model", fingerprint=vocabulary.fingerprint)


def write_copy(folder: Path, model: ChatModel, source: Path, vocabulary: Vocabulary, encoder: ByteEncoder) -> None:
    """Write the model and its byte encoder, and copy all but the weights from `source`, where it came from."""
    folder.mkdir()
    for file in [*source.iterdir(), *source.glob(f"{CHAT_TEMPLATES}/*.jinja")]:
        if file.is_file() and file.name != MANIFEST_NAME and not file.name.endswith((*SUFFIXES, ".index.json")):
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    metadata = {
        "fingerprint": vocabulary.fingerprint,
        **config.get("chatmill", {}),
        "byte_encoder": asdict(encoder.shape),
    }
    config.pop("torch_dtype", None)  # the older name of dtype
    config |= {"dtype": "float32", "tie_word_embeddings": model.config.tie_word_embeddings, "chatmill": metadata}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_weights(encoder.state_dict(), folder / ENCODER_FILE)
    save_weights(model.state_dict(), folder / "model.safetensors")
    write_manifest(folder, kind="model", fingerprint=vocabulary.fingerprint)


def save_weights(weights: dict[str, Tensor], file: Path) -> None:
    """Write tensors as safetensors. Raises ValueError where they cannot be written."""
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(weights, file, metadata={"format": "pt"})
        file.chmod(mode)  # safetensors gives its file one that only the owner can read
    except SafetensorError as error:
        raise ValueError(f"{file.parent}: the weights cannot be written: {error}") from error


def read_byte_encoder(folder: Path) -> ByteEncoder | None:
    """The byte encoder in a model's folder; None where it has none.

    Raises ValueError where it is damaged.
    """
    file = folder / ENCODER_FILE
    if not file.exists():
        return None
    try:
        metadata = json.loads((folder / "config.json").read_text(encoding="utf-8"))["chatmill"]
        weights = load_file(file)
        encoder = ByteEncoder(ByteEncoderShape(**metadata["byte_encoder"]), weights["embed_out.weight"].shape[0])
        encoder.load_state_dict(weights)
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: not the byte encoder that config.json describes: {' '.join(str(error).split())}"
        ) from error
    return encoder.eval()
