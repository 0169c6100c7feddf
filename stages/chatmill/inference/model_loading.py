"""Open a GGUF file as a model: its weights in PyTorch, its tokenizer and its chat template."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from chatmill.engines.engine import ONNX_FILES, Engine, as_memory_error, default_threads
from chatmill.engines.onnx import onnx_engine
from chatmill.engines.torch.pytorch_engine import PyTorchEngine, resolve_device
from chatmill.gguf_import import FIELD, read_gguf, read_shape, read_tensors, read_vocabulary
from chatmill.inference.chat_template import ChatTemplate, recognise_layout, select_template
from chatmill.inference.model_metadata import ModelMetadata, read_model_metadata
from chatmill.model.chat_model import ChatModel
from chatmill.model.checkpoint_loading import model_from_weights
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.llama2c import read_llama2c
from chatmill.tokenizer.formats.tokenizer_loading import IN_FOLDERS, make_lossless
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.added_tokens import flags_of
from chatmill.tokenizer.vocabulary.preprocessing import adds_prefix_space
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION

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


# Loading a model to chat with: the engine, and the tokenizer and template it was trained with.

if TYPE_CHECKING:
    from chatmill.inference.model_loading import GGUFModel

WEIGHTS = ("*.safetensors", "*.index.json", "pytorch_model*.bin", "*.pt", "*.pth")
LLAMA_BOS, LLAMA_EOS = "<s>", "</s>"  # of Llama 2 and llama2.c, where no file says otherwise
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
GGUF = ".gguf"
THREAD_BYTES = 12_000_000  # of weights, for which another thread makes a token faster
EXTERNAL_GRAPHS = ("onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx", "*.onnx")


class LoadedModel(NamedTuple):
    """A loaded model: its engine, tokenizer, chat template, stop ids and the tools that it was trained to call."""

    engine: Engine
    tokenizer: ChatTokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    tools: tuple[str, ...] = ()


def load_model(
    path: Path | str,
    device: str = "auto",
    threads: int | None = None,
    *,
    tokenizer: Path | None = None,
    template: str | None = None,
    trust_tokenizer: bool = False,
) -> LoadedModel:
    """Load any model: a folder of the pipeline or of Hugging Face, an ONNX graph, a GGUF file, or one of weights.

    `tokenizer` and `template` replace those of the model. Raises ValueError where a file is missing or damaged, or the
    tokenizer is not the one the model was trained with, unless `trust_tokenizer` allows that.
    """
    model = find_model(Path(path))
    folder = model if model.suffix == GGUF else _metadata_folder(model)
    opened = _open_gguf(model, device, threads) if model.suffix == GGUF else None
    files = opened.metadata if opened else read_model_metadata(folder)
    engine = opened.engine if opened else _open_engine(model, files, device, threads)
    if opened and tokenizer is None:
        loaded_tokenizer = opened.tokenizer
    else:
        loaded_tokenizer = _load_tokenizer(tokenizer, folder, engine.vocab_size)
    if engine.fingerprint and loaded_tokenizer.fingerprint != engine.fingerprint and not trust_tokenizer:
        raise ValueError(
            f"{tokenizer or folder}: its tokenizer ({loaded_tokenizer.fingerprint[:12]}) is not the one the model was "
            f"trained with ({engine.fingerprint[:12]}): rebuild the folder (dvc repro), or pass --trust-tokenizer"
        )
    name = template or engine.template or _template_name(folder, files)
    special = loaded_tokenizer.special
    if not opened and not (folder / "tokenizer_config.json").exists() and LLAMA_BOS in special:
        ends = {special[name] for name in (LLAMA_BOS, LLAMA_EOS) if name in special}
        files = files._replace(bos_id=special[LLAMA_BOS], stop_ids=files.stop_ids | ends)
    chat_template = select_template(
        name,
        special,
        bos=next((name for name, i in special.items() if i == files.bos_id), ""),
        leading_space=loaded_tokenizer.leading_space,
        flags=flags_of(loaded_tokenizer.vocabulary.special_handling),
    )
    return LoadedModel(engine, loaded_tokenizer, chat_template, files.stop_ids, files.tools)


def threads_for_chat(path: Path) -> int:
    """The threads with which a single chat is fastest: in a small graph, products end before other threads wake up."""
    model = find_model(path)
    small = 1 + model.stat().st_size // THREAD_BYTES if model.suffix == ".onnx" else default_threads()
    return min(default_threads(), small)


def find_model(path: Path) -> Path:
    """The path of a file of weights or a folder of them, or of a graph or GGUF file.

    Raises ValueError where there is none, or several.
    """
    if not path.is_dir():
        if path.exists() and not path.name.endswith((".onnx", ".index.json", GGUF, *SUFFIXES)):
            raise ValueError(f"{path}: not a model: expected .onnx, {GGUF} or {', '.join(SUFFIXES)}, or a folder")
        if not path.exists():
            raise ValueError(f"{path}: no such model: expected a folder of the pipeline or of Hugging Face, or a file")
        return path
    if any(file for pattern in WEIGHTS for file in path.glob(pattern)):
        return path
    for pattern in (*ONNX_FILES.values(), *EXTERNAL_GRAPHS, f"*{GGUF}"):
        if models := sorted(path.glob(pattern)):
            if len(models) > 1:
                raise ValueError(f"{path}: {len(models)} models: name one of {', '.join(map(str, models))}")
            return models[0]
    return path


def load_engine(folder: Path, name: str, *, device: str = "auto", threads: int | None = None) -> Engine:
    """The engine of this name in a folder of the pipeline: pytorch, or one of ONNX_FILES."""
    if name == "pytorch":
        return _open_weights(folder, device, threads)
    if name not in ONNX_FILES:
        raise ValueError(f"unknown engine {name!r}: expected one of pytorch, {', '.join(ONNX_FILES)}")
    return _open_graph(folder / ONNX_FILES[name], name, device, threads)


def engine_names(folder: Path) -> list[str]:
    """The names of the ONNX engines for which a folder has a graph."""
    return [name for name, file in ONNX_FILES.items() if (folder / file).exists()]


def _open_engine(model: Path, files: ModelMetadata, device: str, threads: int | None) -> Engine:
    try:
        if model.suffix != ".onnx":
            return _open_weights(model, device, threads)
        names = {file: name for name, file in ONNX_FILES.items()}
        return _open_graph(model, names.get(model.name, "onnx"), device, threads, files.context)
    except (RuntimeError, MemoryError) as error:
        if out_of_memory := as_memory_error(error, device):
            raise out_of_memory from error
        raise


def _open_weights(path: Path, device: str, threads: int | None) -> Engine:
    from chatmill.engines.torch import opening  # exports run where PyTorch is not installed

    return opening.open_torch_engine(path, device=device, threads=threads)


def _open_gguf(file: Path, device: str, threads: int | None) -> "GGUFModel":
    from chatmill.inference.model_loading import open_gguf  # it needs PyTorch

    try:
        return open_gguf(file, device, threads)
    except (RuntimeError, MemoryError) as error:
        if out_of_memory := as_memory_error(error, device):
            raise out_of_memory from error
        raise


def _open_graph(file: Path, name: str, device: str, threads: int | None, context: int | None = None) -> Engine:
    if not file.exists():
        raise ValueError(f"{file} is missing: expected a model that train_model or export_onnx wrote")
    if check_manifest(file.parent) and device == "auto":
        device = "cpu"  # for which export_onnx chose the operators
    return onnx_engine.open_onnx_engine(file, name=name, device=device, threads=threads, context=context)


def _metadata_folder(model: Path) -> Path:
    """The folder with the files that describe a model: its own, or as on Hugging Face's hub the parent of `onnx`."""
    folder = model if model.is_dir() else model.parent
    return folder.parent if folder.name == "onnx" and not (folder / "config.json").exists() else folder


def _load_tokenizer(given_path: Path | None, folder: Path, vocab_size: int) -> ChatTokenizer:
    """The given tokenizer, or the one beside the model. Files of llama2.c lack `vocab_size`."""
    here = (folder / name for name in (DESCRIPTION, *IN_FOLDERS))
    path = (
        given_path
        or next((folder for file in here if file.is_file()), None)
        or next(iter(folder.glob("tok*.bin")), None)
    )
    if path is None:
        raise ValueError(f"{folder}: no tokenizer beside the model: name one with --tokenizer")
    try:
        return load_tokenizer(path)
    except ValueError:
        if path.suffix != ".bin":
            raise
        vocabulary = read_llama2c(path, vocab_size)
        return ChatTokenizer(make_lossless(vocabulary), leading_space=True)


def _template_name(folder: Path, files: ModelMetadata) -> str:
    """The layout of a model's own chat template; a model without one continues text."""
    if not files.chat_template:
        return "plain"
    if (name := recognise_layout(files.chat_template)) is None:
        raise ValueError(f"{folder}: its chat template is not supported: choose one with --template")
    return name
