"""A trained model whose embeddings are to be made from bytes, and what becomes of it with other rows.

Shapes: V vocabulary, N tokens of text, R of a row: the model's channels, or twice as many where its head has own rows.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from chatmill.conversation.chatml import Conversation
from chatmill.conversation.template import Template
from chatmill.encoded.token_files import Split
from chatmill.evaluation.corpus import Corpus
from chatmill.model.chat_model import ChatModel
from chatmill.soft_tokenizer.noise import KINDS, noisy
from chatmill.soft_tokenizer.pairs import Pairs
from chatmill.soft_tokenizer.plugging import (
    Score,
    embedding_of,
    plug_in,
    rows_for,
    score,
    table_of,
    with_table,
)
from chatmill.soft_tokenizer.tuning import tune
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.training.byte_encoder import ByteEmbedding, ByteEncoder


@dataclass(frozen=True)
class Subject:
    """A trained model, its tokenizer, how it was trained, and the conversations that it is measured on."""

    model: ChatModel
    tokenizer: ChatTokenizer
    template: Template
    prompt_weight: float  # of what the assistant reads, in training
    conversations: list[Conversation]
    threads: int = 1

    def corpus(self, tokenizer: ChatTokenizer | None = None) -> Corpus:
        """The conversations as tokens, of its own tokenizer or of another."""
        return Corpus.encode(self.conversations, tokenizer or self.tokenizer, self.template, self.threads)

    def score(self, table: Tensor, corpus: Corpus) -> Score:
        """Bits per byte of a corpus with the rows (V, R) of another table."""
        return score(with_table(self.model, table), corpus, trained_only=self.prompt_weight == 0)

    def tuned(
        self, embedding: ByteEmbedding, tokenizer: ChatTokenizer, train: Split, *, steps: int, seed: int
    ) -> ChatModel:
        """The model after some steps of training with rows made from bytes; `embedding` learns with it."""
        model = with_table(self.model, embedding.weight)
        plug_in(model, embedding)
        tune(
            model,
            tokenizer.vocabulary,
            train,
            template=self.template,
            steps=steps,
            prompt_weight=self.prompt_weight,
            seed=seed,
        )
        return with_table(model, embedding.weight)


def measure_plugged(subject: Subject, pairs: Pairs, predicted: Tensor, plugged: Tensor) -> dict[str, Score]:
    """Bits per byte with the model's table, with the rows `plugged` (V, R), and with those of the tokens held out.

    The latter are of `predicted` (N, R), by a network that never saw them; `held_out_mean` is with the mean row in
    their place: what it costs to know nothing of them.
    """
    table, corpus = table_of(subject.model), subject.corpus()
    strangers, held_out, mean = pairs.ids[pairs.held_out], table.clone(), table.clone()
    held_out[strangers] = predicted[pairs.held_out]
    mean[strangers] = pairs.rows[~pairs.held_out].mean(dim=0)
    tables = {"table": table, "plugged_in": plugged, "held_out": held_out, "held_out_mean": mean}
    return {name: subject.score(rows, corpus) for name, rows in tables.items()}


def measure_noisy(subject: Subject, plugged: Tensor) -> dict[str, dict[str, Score]]:
    """Bits per byte of noisy conversations, with the model's table and with the rows `plugged` (V, R)."""
    tables = {"table": table_of(subject.model), "plugged_in": plugged}
    result: dict[str, dict[str, Score]] = {}
    for kind in KINDS:
        text = noisy(subject.conversations, kind)
        corpus = Corpus.encode(text, subject.tokenizer, subject.template, subject.threads)
        result[kind] = {name: subject.score(rows, corpus) for name, rows in tables.items()}
    return result


def transferred(subject: Subject, encoder: ByteEncoder, other: ChatTokenizer, counts: np.ndarray) -> ByteEmbedding:
    """The embedding of a tokenizer that the model never had, whose text it reads by the bytes of each token alone.

    `counts` (V,) are those of the model's own tokens.
    """
    known = subject.tokenizer.vocabulary
    others = rows_for(other.vocabulary, known, table_of(subject.model), counts)
    return embedding_of(encoder, other.vocabulary, others)
