"""Writes a model as GGUF files, one for each type of its weights, and the Modelfile with which ollama runs it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gguf import GGML_QUANT_VERSION, MODEL_ARCH_NAMES, GGUFWriter, LlamaFileType

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.checkpoints.weights import Weights, read_weights, weight_files
from chatmill.gguf_export.fields import (
    FileType,
    Quantization,
    UnsupportedModel,
    add_hyperparameters,
    add_tokenizer,
    architecture,
    gguf_tensors,
    write_tensors,
)
from chatmill.inference.chat_template import ChatTemplate, layout_of, open_template
from chatmill.inference.model_metadata import ModelMetadata, read_model_metadata
from chatmill.inference.template_layout import Layout
from chatmill.model.chat_model import load_chat_model
from chatmill.pipeline.manifest import check_manifest, write_manifest
from chatmill.pipeline.progress import log
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.exporting.exports import METASPACE_REASON
from chatmill.tokenizer.formats.gguf_files import TOKENIZER_TYPE
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer

# The Modelfile of ollama: the weights, the chat template in Go's syntax, and where answers end.

NOTE = "# Go's templates cannot escape text: a control token's name in a message is taken for the token.\n"


def modelfile(weights: str, layout: Layout | None, stop: Iterable[str]) -> str:
    """The file's content; without a layout, ollama takes the template of the GGUF file."""
    lines = f"FROM ./{weights}\n"
    if layout is not None:
        lines += f'{NOTE}TEMPLATE """{go_template(layout)}"""\n'
    lines += "".join(f"PARAMETER stop {json.dumps(text, ensure_ascii=False)}\n" for text in stop)
    return f"{lines}PARAMETER temperature 0\n"


def go_template(layout: Layout) -> str:
    """The chat template in the syntax of Go, with the variables of ollama."""
    system, user, assistant = (f"{before}{{{{ .Content }}}}{after}" for before, after in layout[1:4])
    begin, declared, first = layout.begin, "", f'if eq .Role "system" }}}}{system}{{{{ else '
    if layout.system_in_user:
        shown = f"{layout.system[0]}{{{{ $system }}}}{layout.system[1]}"
        cleared = f'{{{{ if $system }}}}{shown}{{{{ $system = "" }}}}{{{{ end }}}}'
        user, first = f"{layout.user[0]}{cleared}{{{{ .Content }}}}{layout.user[1]}", ""
        declared = "{{ $system := .System }}"
    elif system.startswith(begin):
        first = first.replace(begin, "", 1) if begin else first
    else:
        begin = f"{{{{ if not .System }}}}{begin}{{{{ end }}}}"
    body = f'{{{{ {first}if eq .Role "user" }}}}{user}{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}'
    return f"{declared}{begin}{{{{ range .Messages }}}}{body}{{{{ end }}}}{layout.assistant[0].rstrip(' ')}"


# A model as GGUF files, one for each type of its weights, and the Modelfile with which ollama runs it.

FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}


class Source(NamedTuple):
    config: ModelConfig
    content: dict[str, Any]  # of config.json
    weights: Weights  # memory-mapped, by Hugging Face's names
    tokenizer: ChatTokenizer
    metadata: ModelMetadata
    template: ChatTemplate | None  # None where it is not recognised


def export_gguf(model: Path, out: Path, quantize: Sequence[Quantization]) -> list[Path]:
    """Write the model in float32 and quantized, and a Modelfile for ollama, into a new folder; return the GGUF files.

    Raises UnsupportedModel where llama.cpp would not run it as chatmill does, and ValueError for a damaged folder.
    """
    source = read_source(model)
    types: list[FileType] = ["f32", *dict.fromkeys(quantize)]
    files = {file_type: out / f"model-{file_type}.gguf" for file_type in types}
    writers = {file_type: make_writer(source, file, file_type) for file_type, file in files.items()}
    tensors = list(gguf_tensors(source.config, architecture(source.config), source.weights))
    if window := source.config.variant.sliding_window:
        log("export_gguf", f"the context ends at {window:,} tokens, the sliding window, which llama.cpp does not apply")
    out.mkdir()
    for file_type, writer in writers.items():
        write_tensors(writer, tensors, file_type)
        writer.close()
    stop = [source.tokenizer.vocabulary.tokens[i].decode() for i in _stop_ids(source)]
    others = source.template.stop if source.template else ()
    chosen = files[quantize[0] if quantize else "f32"].name
    layout = layout_of(source.template) if source.template else None
    (out / "Modelfile").write_text(modelfile(chosen, layout, [*stop, *others]), encoding="utf-8")
    exact = source.tokenizer.vocabulary.spelling != "marked"
    written = {"files": [file.name for file in files.values()], "exact": exact}
    finish_folder(out, written | ({} if exact else {"reason": METASPACE_REASON}), source.tokenizer.fingerprint)
    return list(files.values())


def finish_folder(out: Path, entry: dict[str, Any], fingerprint: str) -> None:
    """Write what formats.json says of the format, and the manifest of the finished folder."""
    content = json.dumps({"gguf": entry}, ensure_ascii=False, indent=1) + "\n"
    (out / "formats.json").write_text(content, encoding="utf-8")
    write_manifest(out, kind="gguf", fingerprint=fingerprint)


def read_source(folder: Path) -> Source:
    """Read a model's folder; its weights are mapped into memory. Raises ValueError for a damaged one."""
    check_manifest(folder)
    model, content = load_chat_model(folder, torch.device("meta"))
    weights = read_weights(weight_files(folder))
    names = list(model.state_dict())
    if missing := next((name for name in names if name not in weights), None):
        raise ValueError(f"{folder}: it has {missing} under another name: save the model by save_pretrained")
    tokenizer, metadata = load_tokenizer(folder), read_model_metadata(folder)
    expected = (content.get("chatmill") or {}).get("fingerprint", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise ValueError(f"{folder}: its tokenizer is not the one the model was trained with: make this folder again")
    template = _template(content, tokenizer, metadata)
    return Source(model.config, content, {name: weights[name] for name in names}, tokenizer, metadata, template)


def make_writer(source: Source, file: Path, file_type: FileType) -> GGUFWriter:
    """The writer of a file, with all its fields; nothing is written yet."""
    writer = GGUFWriter(file, MODEL_ARCH_NAMES[architecture(source.config)])
    writer.add_file_type(FILE_TYPES[file_type])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    add_hyperparameters(writer, source.config)
    add_tokenizer(writer, source.tokenizer, source.config.vocab_size)
    _add_special_ids(writer, source)
    if source.metadata.chat_template:
        writer.add_chat_template(source.metadata.chat_template)
    own = source.content.get("chatmill") or {}
    for key in ("fingerprint", "template"):
        if key in own:
            writer.add_string(f"chatmill.{key}", own[key])
    writer.add_string(TOKENIZER_TYPE, source.tokenizer.vocabulary.type)
    if own.get("tools"):
        writer.add_array("chatmill.tools", own["tools"])
    return writer


def _add_special_ids(writer: GGUFWriter, source: Source) -> None:
    """Add the ids that begin a text, end an answer and pad.

    llama.cpp has three names for ids that end an answer: of one id it is the first two, of two the third is the other.
    """
    end, *others = _stop_ids(source)
    writer.add_eos_token_id(others.pop(0) if len(others) > 1 else end)
    writer.add_eot_token_id(end)
    if others:
        writer.add_eom_token_id(others[0])
    if (bos := source.metadata.bos_id) is not None:
        writer.add_bos_token_id(bos)
    if isinstance(pad := source.content.get("pad_token_id"), int):
        writer.add_pad_token_id(pad)
    writer.add_add_bos_token(bos is not None and not source.metadata.chat_template)  # the template writes it itself


def _stop_ids(source: Source) -> list[int]:
    """The ids that end an answer, that of the template first. Raises UnsupportedModel where there are none."""
    first = source.template.end_token if source.template else ""
    end = source.tokenizer.special.get(first)
    ids = sorted(source.metadata.stop_ids, key=lambda i: (i != end, i))
    if not ids:
        raise UnsupportedModel("no token ends an answer, for which llama.cpp takes id 11")
    return ids


def _template(content: dict[str, Any], tokenizer: ChatTokenizer, metadata: ModelMetadata) -> ChatTemplate | None:
    """The chat template, chatmill's own or the model's; llama.cpp adds leading spaces by itself."""
    name = (content.get("chatmill") or {}).get("template")
    if name is None and not metadata.chat_template:
        return None
    bos = next((name for name, i in tokenizer.special.items() if i == metadata.bos_id), "")
    return open_template(metadata.chat_template, tokenizer.special, name=name, names=metadata.names, bos=bos)
