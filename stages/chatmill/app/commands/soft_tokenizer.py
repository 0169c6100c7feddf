"""Learn the embeddings of a model made anywhere from the bytes of its tokens; with them, give it another tokenizer."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from chatmill.app.measurement import Document, measure, read_documents, to_segments
from chatmill.app.terminal.settings import check_positive
from chatmill.app.terminal.terminal_chat import notify
from chatmill.app.terminal.token_grid import aligned, print_lines
from chatmill.conversation.template import TemplateName
from chatmill.engines.torch.pytorch_engine import PyTorchEngine
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.model.chat_model import ChatModel
from chatmill.report.metrics import number, percent
from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset
from chatmill.soft_tokenizer.embedding_table import (
    embedding_table,
    make_byte_embedding,
    rows_for,
    unsupported_reason,
    with_embedding_table,
)
from chatmill.soft_tokenizer.encoders import TrainedEncoder, collapsed, train_encoders
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape
from chatmill.training.model_folder import write_copy, write_model

EXAMPLES = """examples:
  chatmill soft-tokenizer --model data/model
  chatmill soft-tokenizer --model ~/models/qwen --data chats.jsonl --output models/soft
  chatmill soft-tokenizer --model data/model --tokenizer other.json --data data/chat/test.jsonl --output models/other

A share of the tokens is held out: a first network never sees their rows and is measured on them. A second one learns
all rows, and is plugged in. With --data, tokens that occur often there count for more, and bits per byte are measured.
What --output holds is a model like any other; train_model.initial with train_model.embedding: bytes trains it on.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill soft-tokenizer`."""
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="a folder with a Llama, Mistral, Qwen2 or Qwen3")
    add("--data", type=Path, action="append", default=[], metavar="FILE", help="as for `chatmill evaluate`")
    add("--limit", type=int, metavar="N", help="only the first N documents of each file")
    add("--tokenizer", type=Path, metavar="PATH", help="another tokenizer, for the model to have in place of its own")
    add("--output", type=Path, metavar="FOLDER", help="write the model with embeddings made from bytes")
    add("--width", type=int, default=64, metavar="N", help="channels of the network (default: %(default)s)")
    add("--layers", type=int, default=2, metavar="N", help="of the network (default: %(default)s)")
    add("--features", type=int, default=1792, metavar="N", help="of a token as a whole (default: %(default)s)")
    add("--longest", type=int, default=32, metavar="N", help="bytes of a token that are read (default: %(default)s)")
    add("--steps", type=int, default=120, metavar="N", help="of learning, 256 tokens each (default: %(default)s)")
    add("--contrast", type=float, default=0.1, metavar="N", help="weight of telling rows apart (default: 0.1)")
    add("--held-out", type=float, default=0.15, metavar="SHARE", help="of the tokens (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="(default: %(default)s)")
    add("--threads", type=int, metavar="N", help="one less than there are cores if not given")


def run(options: argparse.Namespace) -> None:
    """Learn, measure, and write what is asked for."""
    check_options(options)
    loaded = load_model(options.model, "cpu", options.threads)
    model = require_chat_model(loaded, options.model)
    other = other_tokenizer(loaded, options.tokenizer) if options.tokenizer else None
    documents = [document for file in options.data for document in read_documents(file, None, options.limit)]
    counts = token_counts(loaded, documents)
    trained = train(options, loaded, embedding_table(model), counts)
    print_measures(trained.metrics())
    models = {
        "its own table": loaded,
        "made from bytes": with_rows(loaded, model, trained.dataset, trained.predicted_with_all),
    }
    if other is not None:
        models[f"with {options.tokenizer.name}"] = with_tokenizer(loaded, model, trained.encoder, counts, other)
    if documents:
        found = {name: measure(one, documents).bits_per_byte for name, one in models.items()}
        rows = [(name, number(bits.all, 4), number(bits.assistant, 4)) for name, bits in found.items()]
        print_lines([[], *aligned("Bits per byte", ("", "all text", "the assistant's"), rows)], sys.stdout)
    if options.output:
        save_model(options, list(models.values())[-1], trained.encoder)
        notify(f"{options.output}: chat with it by `chatmill chat --model {options.output}`")


def train(options: argparse.Namespace, loaded: LoadedModel, table: Tensor, counts: np.ndarray) -> TrainedEncoder:
    """The trained networks; that tokens are longer than what is read of them is told on stderr."""
    sizes = {name: getattr(options, name) for name in ("width", "layers", "longest", "features")}
    learning = {name: getattr(options, name) for name in ("held_out", "steps", "contrast", "seed")}
    shape = ByteEncoderShape(**sizes, ngrams=0)
    try:
        trained = train_encoders(loaded.tokenizer.vocabulary, table, counts, shape, **learning)
    except ValueError as error:
        raise ValueError(f"{options.model}: {error}") from error
    if cut := trained.dataset.num_truncated:
        longer = f"{cut:,} of {len(trained.dataset.ids):,} tokens are longer than {options.longest} bytes"
        notify(f"{longer}: the rest of them is not read (--longest)")
    return trained


def print_measures(measures: dict[str, dict[str, Any]]) -> None:
    """Print how good the rows are, and warn where they are all alike."""
    columns = {"learnt": measures["kept"], "held out": measures["held_out"], "all, learnt": measures["all"]}
    print_lines(aligned("Rows made from bytes", ("", *columns), measure_rows(columns)), sys.stdout)
    if collapsed(measures):
        notify("collapsed: the network gives every token nearly the same row; take more --steps, or another --seed")


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError for options that mean nothing."""
    for name in ("limit", "width", "layers", "features", "longest", "steps", "threads"):
        if (value := getattr(options, name)) is not None:
            check_positive(f"--{name}", value)
    if options.width % 32:
        raise ValueError(f"--width {options.width}: expected a multiple of 32")
    if not 0 < options.held_out < 1:
        raise ValueError(f"--held-out {options.held_out}: expected a share between 0 and 1")
    if options.output and options.output.exists():
        raise ValueError(f"{options.output}: it is there already: name a folder that is not")


def require_chat_model(loaded: LoadedModel, path: Path) -> ChatModel:
    """The network of a model that was loaded. Raises ValueError where it is no variant of ours, with a table."""
    if not isinstance(loaded.engine, PyTorchEngine):
        raise ValueError(f"{path}: expected the weights of a Llama, Mistral, Qwen2 or Qwen3, as data/model")
    if reason := unsupported_reason(loaded.engine.model.config):
        raise ValueError(f"{path}: {reason}")
    if loaded.tokenizer.vocab_size > loaded.engine.vocab_size:
        raise ValueError(
            f"{path}: its tokenizer has {loaded.tokenizer.vocab_size:,} tokens and the model rows for "
            f"{loaded.engine.vocab_size:,}: the tokenizer is another model's"
        )
    return loaded.engine.model


def token_counts(loaded: LoadedModel, documents: Sequence[Document]) -> np.ndarray:
    """(V,) how often each token occurs in the documents; alike where there are none."""
    size = loaded.tokenizer.vocab_size
    if not documents:
        return np.ones(size, np.int64)
    parts = [to_segments(document.content, loaded.template) for document in documents]
    return np.bincount(loaded.tokenizer.encode_conversations(parts).ids, minlength=size)


def measure_rows(columns: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """What was measured, a row each."""
    found = list(columns.values())
    return [
        ("tokens", *(f"{one['tokens']:,}" for one in found)),
        ("nearest row, by cosine", *(percent(one["nearest"]["cosine"]) for one in found)),
        ("nearest row, by dot product", *(percent(one["nearest"]["dot"]) for one in found)),
        ("  by chance", *(f"{number(100 * one['nearest']['chance'], 3)} %" for one in found)),
        ("variance explained", *(number(one["variance_explained"]["plain"], 3) for one in found)),
        ("  weighted by use", *(number(one["variance_explained"]["by_use"], 3) for one in found)),
        ("mean cosine", *(number(one["mean_cosine"], 3) for one in found)),
        ("length beside the row's", *(number(one["norm_ratio"], 3) for one in found)),
    ]


def with_rows(loaded: LoadedModel, model: ChatModel, pairs: EmbeddingDataset, rows: Tensor) -> LoadedModel:
    """The model with these rows (N, R) for its tokens of text."""
    table = embedding_table(model).clone()
    table[pairs.ids] = rows
    return with_model(loaded, with_embedding_table(model, table))


def other_tokenizer(loaded: LoadedModel, path: Path) -> ChatTokenizer:
    """The tokenizer that a model is to have, with the control tokens of chats.

    Raises ValueError where the model's own template is none that they can write.
    """
    if loaded.template.name not in get_args(TemplateName):
        known = " or ".join(get_args(TemplateName))
        raise ValueError(f"the model's template is {loaded.template.name}: with another tokenizer it must be {known}")
    found = load_tokenizer(path)
    return ChatTokenizer(add_special_tokens(found.vocabulary, []), leading_space=found.leading_space)


def with_tokenizer(
    loaded: LoadedModel, model: ChatModel, encoder: ByteEncoder, counts: np.ndarray, other: ChatTokenizer
) -> LoadedModel:
    """The model with another tokenizer, and rows made from the bytes of its tokens."""
    vocabulary = other.vocabulary
    table = rows_for(vocabulary, loaded.tokenizer.vocabulary, embedding_table(model), counts)
    table = make_byte_embedding(encoder, vocabulary, table).weight.detach()
    return with_model(loaded._replace(tokenizer=other), with_embedding_table(model, table))


def with_model(loaded: LoadedModel, model: ChatModel) -> LoadedModel:
    """The same with another network."""
    engine = loaded.engine
    other = PyTorchEngine(model, template=engine.template, device=engine.device, threads=torch.get_num_threads())
    return loaded._replace(engine=other)


def save_model(options: argparse.Namespace, loaded: LoadedModel, encoder: ByteEncoder) -> None:
    """Write the model to the folder, whole or not at all."""
    assert isinstance(loaded.engine, PyTorchEngine), "a model made here runs in PyTorch"
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=options.output.parent) as scratch:
        folder, vocabulary = Path(scratch, "model"), loaded.tokenizer.vocabulary
        if options.tokenizer:
            write_folder(vocabulary, Path(scratch, "tokenizer"))
            template = {"template": loaded.template.name}
            write_model(folder, loaded.engine.model, Path(scratch, "tokenizer"), vocabulary, template, encoder)
        else:
            source = options.model if options.model.is_dir() else options.model.parent
            write_copy(folder, loaded.engine.model, source, vocabulary, encoder)
        shutil.move(folder, options.output)
