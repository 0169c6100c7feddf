"""Compute a model's embeddings from the bytes of its tokens, and replace its tokenizer."""

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

from chatmill.app.measurement import ScoredDocument, measure, read_documents, to_segments
from chatmill.app.terminal.terminal_chat import check_positive, notify
from chatmill.app.terminal.tokens import aligned, print_lines
from chatmill.conversation import TemplateName
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.model.chat_model import ChatModel
from chatmill.report.markup import number, percent
from chatmill.soft_tokenizer.byte_embedding import ByteEncoder, ByteEncoderShape
from chatmill.soft_tokenizer.embedding_evaluation import (
    embedding_table,
    make_byte_embedding,
    rows_for,
    unsupported_reason,
    with_embedding_table,
)
from chatmill.soft_tokenizer.encoder_training import EmbeddingDataset, TrainedEncoder, collapsed, train_encoders
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.model_folder import write_copy, write_model

EXAMPLES = """examples:
  chatmill soft-tokenizer --model data/model
  chatmill soft-tokenizer --model ~/models/qwen --data chats.jsonl --output models/soft
  chatmill soft-tokenizer --model data/model --tokenizer other.json --data data/chat/test.jsonl --output models/other

A network is trained to predict the rows of the model's embedding table from the
bytes of the tokens. A first network is trained without the held-out tokens and
measured on them. A second one is trained on all tokens; its output replaces the
table. With --data, tokens that are frequent there have more weight, and bits per
byte are measured. To train the written model further, set train_model.initial to
its folder, and train_model.embedding to bytes.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="model of Llama, Mistral, Qwen2 or Qwen3 shape")
    add("--data", type=Path, action="append", default=[], metavar="FILE", help="conversations or text; may be repeated")
    add("--limit", type=int, metavar="N", help="read only the first N documents of each file")
    add("--tokenizer", type=Path, metavar="PATH", help="tokenizer that replaces the model's own")
    add("--output", type=Path, metavar="FOLDER", help="new folder to write the model with its new embeddings into")
    add("--width", type=int, default=64, metavar="N", help="channels, a multiple of 32 (default: %(default)s)")
    add("--layers", type=int, default=2, metavar="N", help="transformer layers (default: %(default)s)")
    add("--features", type=int, default=1792, metavar="N", help="units of the last hidden layer (default: %(default)s)")
    add("--longest", type=int, default=32, metavar="N", help="bytes that are read of a token (default: %(default)s)")
    add("--steps", type=int, default=120, metavar="N", help="training steps of 256 tokens (default: %(default)s)")
    add("--contrast", type=float, default=0.1, metavar="N", help="weight of contrastive loss (default: %(default)s)")
    add("--held-out", type=float, default=0.15, metavar="SHARE", help="share of the tokens (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the random numbers (default: %(default)s)")
    add("--threads", type=int, metavar="N", help="as for `chatmill chat`")


def run(options: argparse.Namespace) -> None:
    """Train the networks, print the measures, and write the model."""
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
        bits_by_model = {name: measure(one, documents).bits_per_byte for name, one in models.items()}
        rows = [(name, number(bits.all, 4), number(bits.assistant, 4)) for name, bits in bits_by_model.items()]
        print_lines([[], *aligned("Bits per byte", ("", "all text", "the assistant's"), rows)], sys.stdout)
    if options.output:
        save_model(options, list(models.values())[-1], trained.encoder)
        notify(f"{options.output}: chat with it by `chatmill chat --model {options.output}`")


def train(options: argparse.Namespace, loaded: LoadedModel, table: Tensor, counts: np.ndarray) -> TrainedEncoder:
    """Train the networks; a notice says how many tokens are truncated."""
    sizes = {name: getattr(options, name) for name in ("width", "layers", "longest", "features")}
    learning = {name: getattr(options, name) for name in ("held_out", "steps", "contrast", "seed")}
    shape = ByteEncoderShape(**sizes, ngrams=0)
    try:
        trained = train_encoders(loaded.tokenizer.vocabulary, table, counts, shape, **learning)
    except ValueError as error:
        raise ValueError(f"{options.model}: {error}") from error
    if num_truncated := trained.dataset.num_truncated:
        longer = f"{num_truncated:,} of {len(trained.dataset.ids):,} tokens are longer than {options.longest} bytes"
        notify(f"{longer}: only their first bytes are read (--longest)")
    return trained


def print_measures(measures: dict[str, dict[str, Any]]) -> None:
    """Print how close the predicted rows are to the table, and warn where they are all alike."""
    columns = {"trained": measures["kept"], "held out": measures["held_out"], "all, trained": measures["all"]}
    print_lines(aligned("Rows predicted from bytes", ("", *columns), measure_rows(columns)), sys.stdout)
    if collapsed(measures):
        notify("collapsed: the network gives every token nearly the same row: try more --steps, or another --seed")


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError for options out of range."""
    for name in ("limit", "width", "layers", "features", "longest", "steps", "threads"):
        if (value := getattr(options, name)) is not None:
            check_positive(f"--{name}", value)
    if options.width % 32:
        raise ValueError(f"--width: expected a multiple of 32, got {options.width}")
    if not 0 < options.held_out < 1:
        raise ValueError(f"--held-out: expected a share between 0 and 1, got {options.held_out}")
    if options.output and options.output.exists():
        raise ValueError(f"{options.output}: already exists: name a new folder")


def require_chat_model(loaded: LoadedModel, path: Path) -> ChatModel:
    """The network of a loaded model. Raises ValueError where it is not in PyTorch or has no embedding table."""
    if not isinstance(loaded.engine, PyTorchEngine):
        raise ValueError(f"{path}: expected the weights of a Llama, Mistral, Qwen2 or Qwen3, as data/model")
    if reason := unsupported_reason(loaded.engine.model.config):
        raise ValueError(f"{path}: {reason}")
    if loaded.tokenizer.vocab_size > loaded.engine.vocab_size:
        raise ValueError(
            f"{path}: its tokenizer has {loaded.tokenizer.vocab_size:,} tokens, but its embedding table has "
            f"{loaded.engine.vocab_size:,} rows: the tokenizer is another model's"
        )
    return loaded.engine.model


def token_counts(loaded: LoadedModel, documents: Sequence[ScoredDocument]) -> np.ndarray:
    """(V,) how often each token occurs in the documents; 1 for each where there are none."""
    size = loaded.tokenizer.vocab_size
    if not documents:
        return np.ones(size, np.int64)
    parts = [to_segments(document.content, loaded.template) for document in documents]
    return np.bincount(loaded.tokenizer.encode_conversations(parts).ids, minlength=size)


def measure_rows(columns: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    measures = list(columns.values())
    return [
        ("tokens", *(f"{one['tokens']:,}" for one in measures)),
        ("nearest row, by cosine", *(percent(one["nearest"]["cosine"]) for one in measures)),
        ("nearest row, by dot product", *(percent(one["nearest"]["dot"]) for one in measures)),
        ("  by chance", *(f"{number(100 * one['nearest']['chance'], 3)} %" for one in measures)),
        ("variance explained", *(number(one["variance_explained"]["plain"], 3) for one in measures)),
        ("  weighted by use", *(number(one["variance_explained"]["by_use"], 3) for one in measures)),
        ("mean cosine", *(number(one["mean_cosine"], 3) for one in measures)),
        ("norm relative to the row's", *(number(one["norm_ratio"], 3) for one in measures)),
    ]


def with_rows(loaded: LoadedModel, model: ChatModel, dataset: EmbeddingDataset, rows: Tensor) -> LoadedModel:
    """The model with these rows (N, R) for its text tokens."""
    table = embedding_table(model).clone()
    table[dataset.ids] = rows
    return with_model(loaded, with_embedding_table(model, table))


def other_tokenizer(loaded: LoadedModel, path: Path) -> ChatTokenizer:
    """The tokenizer that replaces the model's own, with chatmill's control tokens.

    Raises ValueError where the model's template needs other control tokens.
    """
    if loaded.template.name not in get_args(TemplateName):
        known = " or ".join(get_args(TemplateName))
        raise ValueError(f"the model's template is {loaded.template.name}: with another tokenizer it must be {known}")
    tokenizer = load_tokenizer(path)
    return ChatTokenizer(add_special_tokens(tokenizer.vocabulary, []), leading_space=tokenizer.leading_space)


def with_tokenizer(
    loaded: LoadedModel, model: ChatModel, encoder: ByteEncoder, counts: np.ndarray, other: ChatTokenizer
) -> LoadedModel:
    """The model with another tokenizer, and rows predicted from the bytes of its tokens."""
    vocabulary = other.vocabulary
    table = rows_for(vocabulary, loaded.tokenizer.vocabulary, embedding_table(model), counts)
    table = make_byte_embedding(encoder, vocabulary, table).weight.detach()
    return with_model(loaded._replace(tokenizer=other), with_embedding_table(model, table))


def with_model(loaded: LoadedModel, model: ChatModel) -> LoadedModel:
    engine = loaded.engine
    other = PyTorchEngine(model, template=engine.template, device=engine.device, threads=torch.get_num_threads())
    return loaded._replace(engine=other)


def save_model(options: argparse.Namespace, loaded: LoadedModel, encoder: ByteEncoder) -> None:
    """Write the model folder completely or not at all."""
    assert isinstance(loaded.engine, PyTorchEngine), "require_chat_model checked it"
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
