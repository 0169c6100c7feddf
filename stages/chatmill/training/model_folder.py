"""A trained model as a folder that Hugging Face's libraries read, with the byte encoder of its embeddings, if any.

model.safetensors         the weights; embeddings computed from bytes are stored as a table
config.json               the shape; its section `chatmill` records how the model was trained
adapter/                  the adapters of LoRA alone, as PEFT reads them
byte_encoder.safetensors  the network that computes embeddings from bytes; its shape is `chatmill.byte_encoder`
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chatmill.checkpoints.configuration import to_hugging_face
from chatmill.conversation import BOS, CALL_END, IM_END, IM_START, MARKERS, PAD, LossKind
from chatmill.encoded.token_files import EncodedSplit
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.manifest import write_manifest
from chatmill.soft_tokenizer.byte_embedding import ByteEncoder, ByteEncoderShape
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_huggingface
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary
from chatmill.training.distributed import Group
from chatmill.training.hardware import HardwareSettings
from chatmill.training.lora import write_adapter
from chatmill.training.packing import TrainingData
from chatmill.training.plan import Plan
from chatmill.training.train_parameters import TrainParameters

ENCODER_FILE = "byte_encoder.safetensors"
ADAPTER = "adapter"


def metadata_of(
    parameters: TrainParameters,
    data: TrainingData,
    plan: Plan,
    hardware: HardwareSettings,
    kept_step: int,
    group: Group,
    depth: int,
) -> dict[str, Any]:
    """How a model was trained: the section `chatmill` of config.json."""
    spans = data.train.spans
    return {
        "template": data.meta.template,
        "tools": data.meta.tools,
        "depth": depth,
        "steps": plan.steps,
        "epochs": round(plan.epochs, 4),
        **parameters.model_dump(include={"source_weights"}, exclude_defaults=True),
        "kept_step": kept_step,
        "prompt_loss_weight": parameters.prompt_loss_weight,
        **data.taught_by,  # the teacher and its weight, if there was one
        "embedding": parameters.embedding,
        "device": hardware.device,
        "processes": group.size,
        "precision": hardware.precision,
        "compile": hardware.compile,
        "threads": parameters.threads,
        "conversations": {"cut": spans.num_cut, "rejected": spans.rejected},
        "padding": round(plan.padding, 4),
    }


def write_model(
    folder: Path,
    model: ChatModel,
    tokenizer: Path,
    vocabulary: Vocabulary,
    metadata: dict[str, Any],
    encoder: ByteEncoder | None = None,
    adapter: tuple[dict[str, Tensor], Path] | None = None,
) -> None:
    """Write the model and its tokenizer; `metadata` records how it was trained, and with which template.

    `adapter` are the weights of training, if they have adapters, and the model that it started from.
    """
    folder.mkdir()
    if adapter is not None:
        write_adapter(folder / ADAPTER, *adapter)
    write_huggingface(tokenizer, folder, metadata["template"], model.config.max_position_embeddings)
    named = {"bos": BOS, "eos": IM_END, "pad": PAD}
    ids = {f"{name}_token_id": vocabulary.special[token] for name, token in named.items()}
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
        problem = " ".join(str(error).split())
        raise ValueError(f"{file}: not the byte encoder that config.json describes: {problem}") from error
    return encoder.eval()


# Sample answers to the first questions of a split, which are read as ids, so that no tokenizer is needed.

_LONGEST = 256  # tokens of a question: the last ones before its answer
_ANSWER = 24  # tokens


def text_of(ids: Sequence[int] | np.ndarray, vocabulary: Vocabulary) -> str:
    """The text of some ids, without control tokens and line breaks."""
    text = b"".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] in TEXT_KINDS).decode(errors="replace")
    return " ".join(text.split())


def sample_answers(
    model: ChatModel, split: EncodedSplit, vocabulary: Vocabulary, number: int
) -> Iterator[tuple[str, str]]:
    """Up to `number` questions, each with the model's greedy answer; none for documents."""
    for index in np.flatnonzero(~split.is_document)[:number]:
        begin, end = split.offsets[index : index + 2]
        ids, loss = split.ids[begin:end], split.loss[begin:end]
        for place in 1 + np.flatnonzero((loss[:-1] == LossKind.PROMPT) & (loss[1:] == LossKind.TRAINED)):
            starts = np.flatnonzero(ids[:place] == vocabulary.special[IM_START])
            header = text_of(ids[starts[-1] if len(starts) else 0 : place], vocabulary)
            if header.startswith("assistant") if len(starts) else header.endswith(MARKERS["assistant"]):
                room = max(1, min(_LONGEST, model.config.max_position_embeddings - _ANSWER))
                answer = _answer(model, ids[:place][-room:].tolist(), vocabulary)
                if len(starts) > 1:  # without the role
                    header = text_of(ids[starts[-2] : starts[-1]], vocabulary).partition(" ")[2]
                yield header, text_of(answer, vocabulary)
                break


@torch.inference_mode()
def _answer(model: ChatModel, question: list[int], vocabulary: Vocabulary) -> list[int]:
    allowed = torch.tensor([*vocabulary.text_ids, vocabulary.special[IM_END]])
    length = min(len(question) + _ANSWER, model.config.max_position_embeddings)
    cache, ids, answer = model.new_cache(1, length), question, list[int]()
    while cache.length + len(ids) < length and vocabulary.special[IM_END] not in answer:
        logits = model(torch.tensor([ids]), cache=cache, last_only=True)[0, -1]
        ids = [int(allowed[logits[allowed].argmax()])]
        answer += ids
    return answer
