"""Learn the embedding of each token from its bytes, and plug it in.

Some tokens are held out: a first network never sees their rows, and is measured on them. A second one learns all of
them; its rows take the place of the model's table.
"""

import json
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from chatmill.conversation.chatml import Conversation, parse, read_records
from chatmill.conversation.template import Loss, Template
from chatmill.encoded.encoding import encode
from chatmill.encoded.token_files import Split
from chatmill.model.reading import read_model
from chatmill.pipeline.checksum import check_sha256
from chatmill.pipeline.manifest import check_manifest, write_manifest
from chatmill.pipeline.stage import NonNegativeInt, Output, PositiveInt, stage
from chatmill.soft_tokenizer.learning import learn_both, predict
from chatmill.soft_tokenizer.measures import has_collapsed, measure
from chatmill.soft_tokenizer.pairs import Pairs
from chatmill.soft_tokenizer.plugging import embedding_of, refusal, table_of, with_table
from chatmill.soft_tokenizer.subject import Subject, measure_noisy, measure_plugged, transferred
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.loading import files_of
from chatmill.tokenizer.formats.loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.files import complete, read_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape
from chatmill.training.model_folder import write_model
from chatmill.training.trainer import keep_freed_memory

DIGITS = 6  # of the numbers in the metrics


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


def read_test(file: Path, most: int) -> list[Conversation]:
    """At most so many conversations, evenly spread. Raises ValueError with file and line."""
    records = list(enumerate(read_records(file), start=1))
    if not records:
        raise ValueError(f"{file}: no conversations: raise mix.test_share, or add data")
    conversations = []
    for number, record in records[:: -(-len(records) // most)]:
        try:
            conversations.append(parse(record.text))
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    return conversations


def read_pairs(tokenizer: Path, vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, **options: Any) -> Pairs:
    """The pairs to learn from. Raises ValueError where there is nothing to learn, and tells of what is not read."""
    try:
        pairs = Pairs.of(vocabulary, table, counts, **options)
    except ValueError as error:
        raise ValueError(f"{tokenizer}: {error}") from error
    if pairs.cut:
        tell(f"{pairs.cut} of {len(pairs.ids)} tokens are longer than {options['longest']} bytes: the rest is not read")
    return pairs


def measure_learning(pairs: Pairs, predicted: Tensor, whole: Tensor) -> dict[str, Any]:
    """The metrics of learning: on the kept and the held-out tokens, and of the network that has seen all."""
    kept, everything = ~pairs.held_out, torch.ones_like(pairs.held_out)
    sections = {
        "kept": measure(predicted, pairs, kept, kept),
        "held_out": measure(predicted, pairs, kept, pairs.held_out),
        "all": measure(whole, pairs, everything, everything),
    }
    collapsed = has_collapsed(sections["kept"]) or has_collapsed(sections["all"])
    return {"longer_than_read": pairs.cut, "collapsed": collapsed, **sections}


def measure_all(
    subject: Subject, pairs: Pairs, predicted: Tensor, encoder: ByteEncoder, plugged: Tensor
) -> dict[str, Any]:
    """The metrics but for those of training on."""
    return {
        **measure_learning(pairs, predicted, predict(encoder, pairs.spelled)),
        "parameters": {
            "table": table_of(subject.model).numel(),
            "encoder": sum(weight.numel() for weight in encoder.parameters()),
        },
        "bits_per_byte": measure_plugged(subject, pairs, predicted, plugged),
        "noisy": measure_noisy(subject, plugged),
    }


def measure_transfer(
    subject: Subject, file: Path, train: Path, encoder: ByteEncoder, counts: np.ndarray, *, steps: int, seed: int
) -> dict[str, Any]:
    """Bits per byte with another tokenizer, before and after some steps of training; `counts` (V,) are of its own."""
    other = read_other(file)
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


def tell(line: str) -> None:
    """Say something on stderr."""
    print(f"train_soft_tokenizer: {line}", file=sys.stderr)


def rounded(value: Any) -> Any:
    """Numbers with DIGITS digits after the point, in whatever they stand."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, DIGITS) if isinstance(value, float) else value


@stage
def main(
    train: Path,
    test: Path,
    tokenizer: Path,
    model: Path,
    soft_tokenizer: Output,
    metrics: Output,
    *,
    width: Annotated[int, Field(gt=0, multiple_of=32)],
    layers: PositiveInt,
    features: PositiveInt,
    longest: PositiveInt,
    steps: PositiveInt,
    contrast: NonNegativeFloat,
    held_out: Annotated[float, Field(gt=0, lt=1)],
    conversations: PositiveInt,
    tune: NonNegativeInt,
    other_tokenizer: Path | None,
    other_tokenizer_sha256: str,
    seed: NonNegativeInt,
    threads: PositiveInt,
) -> None:
    """Write the model with rows made from bytes, the network that makes them, and what they are worth.

    `conversations` limits those that are scored, `tune` is how many steps the plugged-in model is trained on, and
    `other_tokenizer` a file of one that the model never had.
    """
    if other_tokenizer is not None:
        files, parameter = files_of(other_tokenizer), "train_soft_tokenizer.other_tokenizer_sha256"
        check_sha256(files, other_tokenizer_sha256, parameter, other_tokenizer)
    torch.set_num_threads(threads)
    keep_freed_memory()
    vocabulary = read_folder(tokenizer)
    if check_manifest(model) != vocabulary.fingerprint:
        raise ValueError(f"{model} was trained with another tokenizer than {tokenizer}: run the train_model stage anew")
    network, content = read_model(model, torch.device("cpu"))
    made = content["chatmill"]
    if reason := refusal(network.config):
        leave_out(reason, soft_tokenizer, metrics, vocabulary.fingerprint)
        return

    scored, template = read_test(test, conversations), made["template"]
    subject = Subject(
        network, ChatTokenizer(vocabulary), template, made.get("prompt_loss_weight", 1.0), scored, threads
    )
    split = read_train(train, subject.tokenizer, template)
    counts = np.bincount(split.ids, minlength=len(vocabulary.tokens))
    pairs = read_pairs(tokenizer, vocabulary, table_of(network), counts, longest=longest, held_out=held_out, seed=seed)
    shape = ByteEncoderShape(width=width, layers=layers, longest=longest, ngrams=0, features=features)
    predicted, encoder = learn_both(shape, pairs, steps=steps, contrast=contrast, seed=seed)
    embedding = embedding_of(encoder, vocabulary, table_of(network))
    soft = with_table(network, embedding.weight)
    result = measure_all(subject, pairs, predicted, encoder, table_of(soft))
    if other_tokenizer is not None:
        transfer = partial(measure_transfer, subject, other_tokenizer, train, encoder, counts)
        result["other_tokenizer"] = transfer(steps=tune, seed=seed)
    if tune:
        soft = subject.tuned(embedding, subject.tokenizer, split, steps=tune, seed=seed)
        result["bits_per_byte"]["tuned"] = subject.score(table_of(soft), subject.corpus())
    made = {**made, "soft_tokenizer": {"steps": steps, "tune": tune}}
    write_model(soft_tokenizer, soft, tokenizer, vocabulary, made, encoder)
    metrics.write_text(json.dumps(rounded(result), indent=1) + "\n", encoding="utf-8")
