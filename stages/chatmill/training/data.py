"""The data of a run: the encoded conversations in rows of the context's length, and what a teacher predicts of them."""

from pathlib import Path
from typing import Any, NamedTuple

from chatmill.encoded.token_files import Meta, read_inputs, read_sources, read_split
from chatmill.teacher.predictions import Predictions, read_predictions
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.train_parameters import TrainParameters

CHAINED = 0.5  # of the conversations; without chains, answers after 300 tokens of other talk were 40 % right, not 98 %


class TrainingData(NamedTuple):
    """What a run reads."""

    meta: Meta
    vocabulary: Vocabulary
    train: PackedDataset
    validation: PackedDataset
    taught_by: dict[str, Any]  # what the model's metadata tell of its teacher


def read_data(tokens: Path, tokenizer: Path, teacher: Path, parameters: TrainParameters) -> TrainingData:
    """Raises ValueError where there is nothing to train on, or the files do not fit together."""
    meta, vocabulary = read_inputs(tokens, tokenizer)
    predictions, taught_by = read_teacher(teacher, meta, parameters)
    train, validation = read_datasets(tokens, meta, vocabulary.special, parameters.context, predictions)
    return TrainingData(meta, vocabulary, train, validation, taught_by)


def read_teacher(teacher: Path, meta: Meta, parameters: TrainParameters) -> tuple[Predictions | None, dict[str, Any]]:
    """The teacher's predictions, if there are any, and what the model's metadata tell of it.

    Raises ValueError where the model has no probabilities of tokens that could be compared with them.
    """
    predictions, formats = read_predictions(teacher, meta)
    if predictions is None or not parameters.teacher_weight:
        return None, {}
    if parameters.head == "bytes":
        raise ValueError(
            "train_model.head = bytes predicts bytes, and the teacher tokens: "
            "set train_model.head: table, or train_model.teacher_weight: 0"
        )
    return predictions, {"teacher": formats, "teacher_weight": parameters.teacher_weight}


def read_datasets(
    tokens: Path, meta: Meta, special: dict[str, int], context: int, teacher: Predictions | None
) -> tuple[PackedDataset, PackedDataset]:
    """The train and validation conversations, in rows of the context's length; the former with a teacher, if any."""
    train, validation = (read_split(tokens, split) for split in ("train", "validation"))
    spans = truncate_conversations(train, context, meta.template, special)
    if not len(spans.starts):
        raise ValueError(f"{tokens}: none of {meta.conversations['train']} conversations has anything to train on")
    shorter = truncate_conversations(validation, context, meta.template, special)
    sources = read_sources(tokens, "train", meta)
    dataset = PackedDataset(train, spans, context, special, CHAINED, sources, teacher=teacher)
    return dataset, PackedDataset(
        validation, shorter, context, special, sources=read_sources(tokens, "validation", meta)
    )
