"""Fine-tuning of a model together with the network that makes its embeddings from bytes."""

from itertools import islice

import torch

from chatmill.conversation.template import TemplateName
from chatmill.encoded.token_files import EncodedSplit, token_byte_lengths
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.progress import progress
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.trainer import Trainer
from chatmill.training.training_loop import rows_at_once

LEARNING_RATE = 0.001  # of the matrices
TOKENS_PER_STEP = 4096


def fine_tune(
    model: ChatModel,
    vocabulary: Vocabulary,
    split: EncodedSplit,
    *,
    template: TemplateName,
    steps: int,
    prompt_loss_weight: float,
    seed: int,
) -> None:
    """Train a model for some steps on encoded conversations, as it was trained before.

    Raises ValueError if they have nothing to train on.
    """
    context = model.config.max_position_embeddings
    spans = truncate_conversations(split, context, template, vocabulary.special)
    if not len(spans.starts):
        raise ValueError(f"none of {len(split.offsets) - 1} conversations has anything to train on")
    row_length = min(context, 64 * -(-int(spans.packed_lengths.max()) // 64))
    dataset = PackedDataset(split, spans, row_length, vocabulary.special)
    rows_per_step = max(1, TOKENS_PER_STEP // row_length)
    rows_per_batch = rows_at_once(rows_per_step, row_length, len(vocabulary.tokens))
    trainer = Trainer(
        model,
        MuonAdamW(model, LEARNING_RATE, torch.float32),
        torch.from_numpy(token_byte_lengths(vocabulary)),
        steps=steps,
        prompt_weight=prompt_loss_weight,
        precision="float32",
        compiled=False,
    )
    rows = dataset.endless_rows(seed)
    for _ in progress(range(steps), "tune", unit="step"):
        trainer.step(dataset.batches(list(islice(rows, rows_per_step)), rows_per_batch))
