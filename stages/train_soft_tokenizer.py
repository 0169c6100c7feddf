"""Learn the embedding of each token from its bytes, and plug it in.

Some tokens are held out: the network is trained without their rows, and measured on them. Then its last matrix is
solved for with all rows; what it gives takes the place of the model's table.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatmill.conversation.template import Loss, Template
from chatmill.encoded.encoding import encode
from chatmill.encoded.token_files import Split, read_meta, read_split
from chatmill.evaluation.held_back import read_test_set
from chatmill.evaluation.rounding import rounded
from chatmill.model.reading import read_model
from chatmill.pipeline.manifest import check_manifest, write_manifest
from chatmill.pipeline.parameters import check_external
from chatmill.pipeline.progress import log
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.soft_tokenizer.encoders import Trained, collapsed, train_encoders
from chatmill.soft_tokenizer.parameters import SoftTokenizerParameters
from chatmill.soft_tokenizer.plugging import embedding_of, refusal, table_of, with_table
from chatmill.soft_tokenizer.subject import Subject, measure_noisy, measure_plugged, transferred
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.files import complete, read_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape
from chatmill.training.model_folder import write_model
from chatmill.training.trainer import keep_freed_memory


def leave_out(reason: str, folder: Path, metrics: Path, fingerprint: str) -> None:
    """Say in both outputs why there is nothing in them."""
    folder.mkdir()
    content = {"soft_tokenizer": {"reason": reason}}
    (folder / "formats.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_manifest(folder, kind="model", fingerprint=fingerprint)
    metrics.write_text(json.dumps({"left_out": reason}, indent=1) + "\n", encoding="utf-8")


def read_train(file: Path, tokenizer: ChatTokenizer, template: Template) -> Split:
    """The conversations as tokens. Raises ValueError where they have nothing to train on."""
    chunks = list(encode(file, tokenizer, template))
    starts = np.cumsum([0, *(len(chunk.ids) for chunk in chunks)])
    offsets = (chunk.offsets[1:] + start for chunk, start in zip(chunks, starts, strict=False))
    if not any((chunk.loss == Loss.TRAINED).any() for chunk in chunks):
        raise ValueError(f"{file}: no conversation has anything to train on")
    ids, loss = (np.concatenate(arrays) for arrays in zip(*(chunk[:2] for chunk in chunks), strict=True))
    return Split(ids, loss, np.concatenate([[0], *offsets]))


def train_network(
    vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, parameters: SoftTokenizerParameters
) -> Trained:
    """The trained networks; tokens that are longer than what is read of them are logged."""
    shape = ByteEncoderShape(
        width=parameters.width,
        layers=parameters.layers,
        longest=parameters.longest,
        ngrams=0,
        features=parameters.features,
    )
    trained = train_encoders(
        vocabulary,
        table,
        counts,
        shape,
        held_out=parameters.held_out,
        steps=parameters.steps,
        contrast=parameters.contrast,
        seed=parameters.seed,
    )
    if cut := trained.pairs.cut:
        size = len(trained.pairs.ids)
        rest = f"{cut} of {size} tokens are longer than {parameters.longest} bytes: the rest is not read"
        log("train_soft_tokenizer", rest)
    return trained


def measure_all(subject: Subject, trained: Trained, plugged: Tensor, *, noise: bool) -> dict[str, Any]:
    """The metrics but for those of training on; `plugged` (V, R) are the rows of the encoder that has seen all."""
    measures = trained.measures()
    result = {
        "longer_than_read": trained.pairs.cut,
        "collapsed": collapsed(measures),
        **measures,
        "parameters": {
            "table": table_of(subject.model).numel(),
            "encoder": sum(weight.numel() for weight in trained.encoder.parameters()),
        },
        "bits_per_byte": measure_plugged(subject, trained.pairs, trained.predicted, plugged),
    }
    return result | ({"noisy": measure_noisy(subject, plugged)} if noise else {})


def measure_transfer(
    subject: Subject, other: ChatTokenizer, train: Path, encoder: ByteEncoder, counts: np.ndarray, steps: int, seed: int
) -> dict[str, Any]:
    """Bits per byte with another tokenizer, before and after some steps of training; `counts` (V,) are of its own."""
    corpus, embedding = subject.corpus(other), transferred(subject, deepcopy(encoder), other, counts)
    result = {"plugged_in": subject.score(embedding.weight, corpus)}
    if steps:
        split = read_train(train, other, subject.template)
        model = subject.tuned(embedding, other, split, steps=steps, seed=seed)
        result["tuned"] = subject.score(table_of(model), corpus)
    return result


def read_other(file: Path) -> ChatTokenizer:
    """A tokenizer made elsewhere, with the control tokens that it lacks. Raises ValueError with the file."""
    found = load_tokenizer(file)
    try:
        return ChatTokenizer(complete(found.vocabulary, []), leading_space=found.leading_space)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


@stage
def main(
    train: Path,
    test: Path,
    tokens: Path,
    tokenizer: Path,
    model: Path,
    external: Path,
    soft_tokenizer: Output,
    metrics: Output,
    *,
    parameters: SoftTokenizerParameters,
) -> None:
    """Write the model with rows made from bytes, the network that makes them, and what they are worth.

    `external` is the folder in which `parameters.other_tokenizer` lies: the file of one that the model never had.
    """
    if parameters.other_tokenizer is not None:
        check_external(parameters.other_tokenizer, external, "train_soft_tokenizer.other_tokenizer")
    torch.set_num_threads(parameters.threads)
    keep_freed_memory()
    vocabulary = read_folder(tokenizer)
    if check_manifest(model) != vocabulary.fingerprint:
        raise ValueError(f"{model} was trained with another tokenizer than {tokenizer}: run the train_model stage anew")
    if read_meta(tokens).fingerprint != vocabulary.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer than {tokenizer}: run the encode stage anew")
    network, content = read_model(model, torch.device("cpu"))
    made = content["chatmill"]
    if reason := refusal(network.config):
        leave_out(reason, soft_tokenizer, metrics, vocabulary.fingerprint)
        return

    scored, template = read_test_set(test, parameters.conversations).conversations, made["template"]
    subject = Subject(
        network, ChatTokenizer(vocabulary), template, made.get("prompt_loss_weight", 1.0), scored, parameters.threads
    )
    split = read_split(tokens, "train")
    counts = np.bincount(split.ids, minlength=len(vocabulary.tokens))
    try:
        trained = train_network(vocabulary, table_of(network), counts, parameters)
    except ValueError as error:
        raise ValueError(f"{tokenizer}: {error}") from error
    embedding = embedding_of(trained.encoder, vocabulary, table_of(network))
    soft = with_table(network, embedding.weight)
    result = measure_all(subject, trained, table_of(soft), noise=parameters.noise)
    steps, seed = parameters.tune, parameters.seed
    if parameters.other_tokenizer is not None:
        other = read_other(parameters.other_tokenizer)
        result["other_tokenizer"] = measure_transfer(subject, other, train, trained.encoder, counts, steps, seed)
    if steps:
        soft = subject.tuned(embedding, subject.tokenizer, split, steps=steps, seed=seed)
        result["bits_per_byte"]["tuned"] = subject.score(table_of(soft), subject.corpus())
    made = {**made, "soft_tokenizer": {"steps": parameters.steps, "tune": steps}}
    write_model(soft_tokenizer, soft, tokenizer, vocabulary, made, trained.encoder)
    metrics.write_text(json.dumps(rounded(result), indent=1) + "\n", encoding="utf-8")
