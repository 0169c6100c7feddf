"""Loading a model to chat with: the engine, and the tokenizer and template it was trained with."""

from pathlib import Path
from typing import NamedTuple

from chatmill.engines.engine import ONNX_FILES, Engine, default_threads, memory_errors
from chatmill.engines.onnx_engine import GraphCache, Session, SharedCaches, graph_bytes
from chatmill.inference.chat_template import ChatTemplate, open_template
from chatmill.inference.model_metadata import read_model_metadata
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import IN_FOLDERS
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION

WEIGHTS = ("*.safetensors", "*.index.json", "pytorch_model*.bin", "*.pt", "*.pth")
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
GGUF = ".gguf"
THREAD_BYTES = 12_000_000  # of weights, for which another thread makes a token faster
EXTERNAL_GRAPHS = ("onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx", "*.onnx")


class LoadedModel(NamedTuple):
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
    own_tokenizer = None
    engine: Engine
    with memory_errors(device):
        if model.suffix == GGUF:
            from chatmill.inference.gguf_loading import open_gguf  # exports run where PyTorch is not installed

            engine, own_tokenizer, files = open_gguf(model, device, threads)
        else:
            files = read_model_metadata(folder)
            if model.suffix == ".onnx":
                name = next((name for name, file in ONNX_FILES.items() if file == model.name), "onnx")
                engine = open_onnx_engine(model, name=name, device=device, threads=threads, context=files.context)
            else:
                engine = open_weights(model, device=device, threads=threads)
    if (
        tokenizer is None
        and not own_tokenizer
        and not any((folder / one).is_file() for one in (DESCRIPTION, *IN_FOLDERS))
    ):
        raise ValueError(f"{folder}: no tokenizer beside the model: name one with --tokenizer")
    loaded_tokenizer = own_tokenizer if own_tokenizer and tokenizer is None else load_tokenizer(tokenizer or folder)
    if engine.fingerprint and loaded_tokenizer.fingerprint != engine.fingerprint and not trust_tokenizer:
        raise ValueError(
            f"{tokenizer or folder}: its tokenizer ({loaded_tokenizer.fingerprint[:12]}) is not the one the model was "
            f"trained with ({engine.fingerprint[:12]}): rebuild the folder (dvc repro), or pass --trust-tokenizer"
        )
    special = loaded_tokenizer.special
    try:
        chat_template = open_template(
            files.chat_template,
            special,
            name=template or engine.template or (None if files.chat_template else "plain"),
            names=files.names,
            bos=next((name for name, i in special.items() if i == files.bos_id), ""),
            leading_space=loaded_tokenizer.leading_space,
            flags=loaded_tokenizer.vocabulary.flags,
        )
    except ValueError as error:
        raise ValueError(f"{folder}: {error}: choose one with --template") from error
    return LoadedModel(engine, loaded_tokenizer, chat_template, files.stop_ids, files.tools)


def threads_for_chat(path: Path) -> int:
    """The threads with which a single chat is fastest: in a small graph, products end before other threads wake up."""
    model = find_model(path)
    small = 1 + graph_bytes(model) // THREAD_BYTES if model.suffix == ".onnx" else default_threads()
    return min(default_threads(), small)


def find_model(path: Path) -> Path:
    """The folder or file of a model's weights, its graph, or GGUF file. Raises ValueError for none and for several."""
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
        return open_weights(folder, device=device, threads=threads)
    if name not in ONNX_FILES:
        raise ValueError(f"unknown engine {name!r}: expected one of pytorch, {', '.join(ONNX_FILES)}")
    return open_onnx_engine(folder / ONNX_FILES[name], name=name, device=device, threads=threads)


def engine_names(folder: Path) -> list[str]:
    return [name for name, file in ONNX_FILES.items() if (folder / file).exists()]


def open_onnx_engine(
    file: Path, *, name: str, threads: int | None = None, context: int | None = None, device: str = "auto"
) -> Engine:
    """Open the engine that fits the graph; `context` is the number of tokens that an external one was trained for."""
    if not file.is_file():
        raise ValueError(f"{file} is missing: expected an ONNX graph, as export_onnx writes it")
    if check_manifest(file.parent) and device == "auto":
        device = "cpu"  # for which export_onnx chose the operators
    session = Session(file, threads=threads, device=device)
    is_shared = "seqlens_k" in session.inputs and "chatmill.format" in session.metadata
    if is_shared and session.device != "cpu":
        raise ValueError(f"{file}: it runs on the CPU only: use --device cpu, or --model data/model for PyTorch")
    caches = SharedCaches(session) if is_shared else GraphCache(session, context)
    origin = {key: session.metadata.get(f"chatmill.{key}", "") for key in ("fingerprint", "template")}
    return Engine(caches, name, **origin)


def open_weights(path: Path, *, device: str = "auto", threads: int | None = None) -> Engine:
    """The engine of a model folder or one file of weights; transformers runs what our model cannot represent."""
    from chatmill.checkpoints.configuration import UnsupportedArchitecture  # exports run where PyTorch is not installed
    from chatmill.engines.pytorch_engine import PyTorchEngine, resolve_device
    from chatmill.model.chat_model import load_chat_model

    if not path.exists():
        raise ValueError(f"{path}: no such model")
    check_manifest(path if path.is_dir() else path.parent)
    try:
        model, content = load_chat_model(path, resolve_device(device))
    except UnsupportedArchitecture as error:
        from chatmill.engines.transformers_engine import open_transformers_engine

        return open_transformers_engine(path, str(error), device=device, threads=threads)
    section = content.get("chatmill")  # what train_model wrote
    origin = section if isinstance(section, dict) else {}
    fingerprint, template = (str(origin.get(key, "")) for key in ("fingerprint", "template"))
    return PyTorchEngine(model, fingerprint=fingerprint, template=template, device=device, threads=threads)


def _metadata_folder(model: Path) -> Path:
    """The folder with the files that describe a model: its own, or as on Hugging Face's hub the parent of `onnx`."""
    folder = model if model.is_dir() else model.parent
    return folder.parent if folder.name == "onnx" and not (folder / "config.json").exists() else folder
