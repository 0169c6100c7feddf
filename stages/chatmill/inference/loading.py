"""Loading a model to chat with: the engine, and the tokenizer and template it was trained with."""

from pathlib import Path
from typing import NamedTuple

from chatmill.engines.engine import ONNX_FILES, Engine, memory_error
from chatmill.engines.onnx import onnx_engine
from chatmill.inference.chat_template import ChatTemplate, recognised, template_of
from chatmill.inference.model_files import ModelFiles, read_model_files
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.llama2c import read_llama2c
from chatmill.tokenizer.formats.loading import IN_FOLDERS, as_it_is
from chatmill.tokenizer.formats.loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.files import DESCRIPTION

WEIGHTS = ("*.safetensors", "*.index.json", "pytorch_model*.bin", "*.pt", "*.pth")
BEGINS, ENDS = "<s>", "</s>"  # a text, where no file says otherwise, as in Llama 2's and llama2.c's
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
FOREIGN_GRAPHS = ("onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx", "*.onnx")


class Loaded(NamedTuple):
    """What a chat needs."""

    engine: Engine
    tokenizer: ChatTokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]


def load(
    path: Path | str,
    device: str = "auto",
    threads: int | None = None,
    *,
    tokenizer: Path | None = None,
    template: str | None = None,
    trust_tokenizer: bool = False,
) -> Loaded:
    """A model made anywhere: a folder of the pipeline or of Hugging Face's, an ONNX graph, or a file of weights.

    `tokenizer` and `template` stand for those that belong to the model. Raises ValueError where something is missing or
    damaged, or, but for `trust_tokenizer`, the tokenizer is not the one the model was trained with.
    """
    model = find_model(Path(path))
    home = _home(model)
    files = read_model_files(home)
    engine = _open(model, files, device, threads)
    found = _load_tokenizer(tokenizer, home, engine.vocab_size)
    if engine.fingerprint and found.fingerprint != engine.fingerprint and not trust_tokenizer:
        raise ValueError(
            f"{tokenizer or home}: its tokenizer ({found.fingerprint[:12]}) is not the one the model was trained with "
            f"({engine.fingerprint[:12]}): make the folder anew (dvc repro)"
        )
    name = template or engine.template or _template_name(home, files)
    bos = next((name for name, i in found.special.items() if i == files.bos), "")
    stop_ids = files.stop_ids
    if not (home / "tokenizer_config.json").exists() and BEGINS in found.special:
        bos, stop_ids = BEGINS, stop_ids | {found.special[name] for name in (BEGINS, ENDS) if name in found.special}
    spoken = template_of(name, found.special, bos=bos, leading_space=found.leading_space)
    return Loaded(engine, found, spoken, stop_ids)


def find_model(path: Path) -> Path:
    """What holds the model: a file of weights, a folder of them, or a graph. Raises ValueError for none, or several."""
    if not path.is_dir():
        if path.exists() and not path.name.endswith((".onnx", ".index.json", *SUFFIXES)):
            raise ValueError(f"{path}: not a model: expected .onnx or {', '.join(SUFFIXES)}, or a folder")
        if not path.exists():
            raise ValueError(
                f"{path}: no such model: expected a folder, of the pipeline's or of Hugging Face's, or a file"
            )
        return path
    if any(file for pattern in WEIGHTS for file in path.glob(pattern)):
        return path
    for pattern in (*ONNX_FILES.values(), *FOREIGN_GRAPHS):
        if graphs := sorted(path.glob(pattern)):
            if len(graphs) > 1:
                raise ValueError(f"{path}: {len(graphs)} graphs: name one of {', '.join(map(str, graphs))}")
            return graphs[0]
    return path


def load_engine(folder: Path, name: str, *, device: str = "auto", threads: int | None = None) -> Engine:
    """The engine of this name in a folder of the pipeline: pytorch, or one of ONNX_FILES."""
    if name == "pytorch":
        return _open_weights(folder, device, threads)
    if name not in ONNX_FILES:
        raise ValueError(f"unknown engine {name!r}: expected one of pytorch, {', '.join(ONNX_FILES)}")
    return _open_graph(folder / ONNX_FILES[name], name, device, threads)


def engines(folder: Path) -> list[str]:
    """The names of the engines that a folder has a graph for."""
    return [name for name, file in ONNX_FILES.items() if (folder / file).exists()]


def _open(model: Path, files: ModelFiles, device: str, threads: int | None) -> Engine:
    try:
        if model.suffix != ".onnx":
            return _open_weights(model, device, threads)
        names = {file: name for name, file in ONNX_FILES.items()}
        return _open_graph(model, names.get(model.name, "onnx"), device, threads, files.context)
    except (RuntimeError, MemoryError) as error:
        if told := memory_error(error, device):
            raise told from error
        raise


def _open_weights(path: Path, device: str, threads: int | None) -> Engine:
    from chatmill.engines.torch import opening  # exports chat where PyTorch is not installed

    return opening.open_engine(path, device=device, threads=threads)


def _open_graph(file: Path, name: str, device: str, threads: int | None, context: int | None = None) -> Engine:
    if not file.exists():
        raise ValueError(f"{file} is missing: expected a model that train_model or export_onnx wrote")
    if check_manifest(file.parent) and device == "auto":
        device = "cpu"  # for which export_onnx chose the operators
    return onnx_engine.open_engine(file, name=name, device=device, threads=threads, context=context)


def _home(model: Path) -> Path:
    """The folder with the files that describe a model: its own, or that above the `onnx` of Hugging Face's hub."""
    folder = model if model.is_dir() else model.parent
    return folder.parent if folder.name == "onnx" and not (folder / "config.json").exists() else folder


def _load_tokenizer(named: Path | None, home: Path, vocab_size: int) -> ChatTokenizer:
    """The tokenizer that was named, or the one beside the model; llama2.c's too, which does not know its size."""
    here = (home / name for name in (DESCRIPTION, *IN_FOLDERS))
    path = named or next((home for file in here if file.is_file()), None) or next(iter(home.glob("tok*.bin")), None)
    if path is None:
        raise ValueError(f"{home}: no tokenizer beside the model: name one with --tokenizer")
    try:
        return load_tokenizer(path)
    except ValueError:
        if path.suffix != ".bin":
            raise
        vocabulary = read_llama2c(path, vocab_size)
        return ChatTokenizer(as_it_is(vocabulary), leading_space=True)


def _template_name(home: Path, files: ModelFiles) -> str:
    """The layout that a model's own template writes; one without a template continues text as it stands."""
    if not files.jinja:
        return "plain"
    if (name := recognised(files.jinja)) is None:
        raise ValueError(f"{home}: its chat template is none that chatmill knows: choose one with --template")
    return name
