"""Training a model on, whose embeddings a network makes from bytes: both learn."""

from itertools import islice

import torch

from chatmill.conversation.template import Template
from chatmill.encoded.token_files import Split, text_bytes
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.progress import progress
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.optimizer import Optimizer
from chatmill.training.packing import Feed, cut_to_fit
from chatmill.training.run import rows_at_once
from chatmill.training.trainer import Trainer

RATE = 0.001  # of the matrices
TOKENS = 4096  # of a step


def tune(
    model: ChatModel,
    vocabulary: Vocabulary,
    split: Split,
    *,
    template: Template,
    steps: int,
    prompt_weight: float,
    seed: int,
) -> None:
    """Train a model for some steps on encoded conversations, as it was trained before.

    Raises ValueError where they have nothing to train on.
    """
    context = model.config.max_position_embeddings
    pieces = cut_to_fit(split, context, template, vocabulary.special)
    if not len(pieces.starts):
        raise ValueError(f"none of {len(split.offsets) - 1} conversations has anything to train on")
    row_length = min(context, 64 * -(-int(pieces.room.max()) // 64))
    feed = Feed(split, pieces, row_length, vocabulary.special)
    rows_a_step = max(1, TOKENS // row_length)
    rows_a_batch = rows_at_once(rows_a_step, row_length, len(vocabulary.tokens))
    trainer = Trainer(
        model,
        Optimizer(model, RATE, torch.float32),
        torch.from_numpy(text_bytes(vocabulary)),
        steps=steps,
        prompt_weight=prompt_weight,
        precision="float32",
        compiled=False,
    )
    rows = feed.rows(seed)
    for _ in progress(range(steps), "tune", unit="step"):
        trainer.step(feed.batches(list(islice(rows, rows_a_step)), rows_a_batch))
