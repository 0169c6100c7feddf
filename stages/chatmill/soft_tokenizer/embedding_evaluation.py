"""Evaluation of a trained model whose embedding table is replaced by rows made from bytes.

Shapes: V vocabulary, N text tokens, R channels of a row: the model's, or twice as many if its head has own rows.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from chatmill.conversation.chatml import Record
from chatmill.conversation.template import TemplateName
from chatmill.encoded.token_files import EncodedSplit
from chatmill.evaluation.corpus import Corpus
from chatmill.model.chat_model import ChatModel
from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset
from chatmill.soft_tokenizer.embedding_table import (
    BitsPerByte,
    embedding_table,
    make_byte_embedding,
    measure_bits_per_byte,
    plug_in,
    rows_for,
    with_embedding_table,
)
from chatmill.soft_tokenizer.fine_tuning import fine_tune
from chatmill.soft_tokenizer.noise import NOISE_KINDS, add_noise
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.training.byte_encoder import ByteEmbedding, ByteEncoder


@dataclass(frozen=True)
class EmbeddingEvaluator:
    """A trained model, its tokenizer, how it was trained, and the records that it is measured on."""

    model: ChatModel
    tokenizer: ChatTokenizer
    template: TemplateName
    prompt_loss_weight: float  # the weight of what the assistant reads, in training
    records: list[Record]
    threads: int = 1

    def corpus(self, tokenizer: ChatTokenizer | None = None) -> Corpus:
        """The records, encoded by the model's own tokenizer or another one."""
        return Corpus.from_records(self.records, tokenizer or self.tokenizer, self.template, self.threads)

    def bits_per_byte(self, table: Tensor, corpus: Corpus) -> BitsPerByte:
        """Bits per byte of a corpus with the rows (V, R) of another table."""
        return measure_bits_per_byte(
            with_embedding_table(self.model, table), corpus, trained_only=self.prompt_loss_weight == 0
        )

    def fine_tuned(
        self, embedding: ByteEmbedding, tokenizer: ChatTokenizer, train: EncodedSplit, *, steps: int, seed: int
    ) -> ChatModel:
        """The model after some steps of training with rows made from bytes; `embedding` is trained with it."""
        model = with_embedding_table(self.model, embedding.weight)
        plug_in(model, embedding)
        fine_tune(
            model,
            tokenizer.vocabulary,
            train,
            template=self.template,
            steps=steps,
            prompt_loss_weight=self.prompt_loss_weight,
            seed=seed,
        )
        return with_embedding_table(model, embedding.weight)


def measure_plugged(
    evaluator: EmbeddingEvaluator, dataset: EmbeddingDataset, predicted: Tensor, plugged: Tensor
) -> dict[str, BitsPerByte]:
    """Bits per byte with the model's table, with the rows `plugged` (V, R), and with predicted rows of held-out tokens.

    The latter are from `predicted` (N, R), by a network that was not trained on them; the baseline `held_out_mean` has
    the mean row in their place.
    """
    table, corpus = embedding_table(evaluator.model), evaluator.corpus()
    held_out_ids, held_out, mean = dataset.ids[dataset.held_out], table.clone(), table.clone()
    held_out[held_out_ids] = predicted[dataset.held_out]
    mean[held_out_ids] = dataset.rows[~dataset.held_out].mean(dim=0)
    tables = {"table": table, "plugged_in": plugged, "held_out": held_out, "held_out_mean": mean}
    return {name: evaluator.bits_per_byte(rows, corpus) for name, rows in tables.items()}


def measure_noisy(evaluator: EmbeddingEvaluator, plugged: Tensor) -> dict[str, dict[str, BitsPerByte]]:
    """Bits per byte of noisy records, with the model's table and with the rows `plugged` (V, R)."""
    tables = {"table": embedding_table(evaluator.model), "plugged_in": plugged}
    result: dict[str, dict[str, BitsPerByte]] = {}
    for kind in NOISE_KINDS:
        text = add_noise(evaluator.records, kind)
        corpus = Corpus.from_records(text, evaluator.tokenizer, evaluator.template, evaluator.threads)
        result[kind] = {name: evaluator.bits_per_byte(rows, corpus) for name, rows in tables.items()}
    return result


def transferred_embedding(
    evaluator: EmbeddingEvaluator, encoder: ByteEncoder, other: ChatTokenizer, counts: np.ndarray
) -> ByteEmbedding:
    """The embedding for a tokenizer that the model was not trained with, made from the bytes of its text tokens.

    `counts` (V,) are those of the model's own tokens.
    """
    known = evaluator.tokenizer.vocabulary
    others = rows_for(other.vocabulary, known, embedding_table(evaluator.model), counts)
    return make_byte_embedding(encoder, other.vocabulary, others)
