"""Evaluates a trained model whose embedding table is replaced by rows made from bytes, also on noisy text and with
another tokenizer.

The noise is deterministic: that of a conversation depends on its own text alone.
"""

import hashlib
import random
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from chatmill.conversation import Message, Part, Record, TemplateName, escape, is_document, parse, render, unescape
from chatmill.encoded.file_encoding import LineError, encode_lines
from chatmill.encoded.token_files import EncodedSplit, read_meta
from chatmill.evaluation.bits_per_byte import make_batch_scorer
from chatmill.evaluation.corpus import Corpus
from chatmill.evaluation.held_out_set import read_test_set
from chatmill.model.chat_model import EMBEDDING, HEAD, INITIAL_ROTARY_POSITIONS, ChatModel, load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.pipeline.progress import progress
from chatmill.soft_tokenizer.byte_embedding import ByteEmbedding, ByteEncoder
from chatmill.soft_tokenizer.encoder_training import EmbeddingDataset
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.optimizer import muon_adamw
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.plan import rows_at_once
from chatmill.training.trainer import Trainer

# Noise in conversations and documents: typos, unusual case, and invented words.

Noise = Literal["typos", "case", "rare_words"]
NOISE_KINDS: tuple[Noise, ...] = get_args(Noise)
TYPOS, CASES, RARE = 0.1, 0.15, 0.15  # shares of the words

_WORD = re.compile(r"[^\W\d_]{3,}")
_ONSETS = "b", "br", "d", "dr", "f", "g", "gl", "h", "k", "kl", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "v", "z"
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("", "l", "m", "n", "r", "s", "x", "rk", "nd")


def add_noise(records: Iterable[Record], kind: Noise) -> list[Record]:
    """The records with some words of their text changed; tool calls and their outputs stay."""
    return [replace(record, text=_noisy(record.text, kind)) for record in records]


def _noisy(text: str, kind: Noise) -> str:
    rng, replaced = random.Random(hashlib.sha256(text.encode()).digest()), dict[str, str]()

    def change(match: re.Match[str]) -> str:
        word = match[0]
        if kind == "case":
            return rng.choice((word.upper(), word.capitalize(), word.swapcase())) if rng.random() < CASES else word
        return _with_typo(word, rng) if kind == "typos" else _with_rare_word(word, rng, replaced)

    def changed(part: Part) -> Part:
        return replace(part, text=_WORD.sub(change, part.text)) if part.kind == "text" else part

    if is_document(text):
        return escape(changed(Part("text", unescape(text))).text)
    return render(Message(one.role, tuple(map(changed, one.parts))) for one in parse(text))


def _with_typo(word: str, rng: random.Random) -> str:
    """A word of two letters or more, in which at times two adjacent ones are swapped, or one is left out or doubled."""
    if rng.random() >= TYPOS:
        return word
    i = rng.randrange(len(word) - 1)
    slips = (word[:i] + word[i + 1] + word[i] + word[i + 2 :], word[:i] + word[i + 1 :], word[: i + 1] + word[i:])
    return rng.choice(slips)


def _with_rare_word(word: str, rng: random.Random, replaced: dict[str, str]) -> str:
    """The word, or at times an invented one; `replaced` keeps the choice, so that a text has the same one each time."""
    known = word.lower()
    if known not in replaced and rng.random() < RARE:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 3))))
        replaced[known] = "".join(syllables) + rng.choice(_ENDS)
    if replaced.setdefault(known, known) == known:
        return word
    return replaced[known].capitalize() if word[0].isupper() else replaced[known]


# The embedding table of a chat model, and its replacement by rows that a network makes from bytes.

TABLES = (f"model.{EMBEDDING}", HEAD)
BitsPerByte = Mapping[str, float | None]


class EmbeddingSlice(nn.Module):
    """The rows of the embedding or of the head, if one network makes both side by side."""

    def __init__(self, embedding: ByteEmbedding, offset: int, width: int) -> None:
        super().__init__()
        self.embedding, self.offset, self.width = embedding, offset, width

    @property
    def weight(self) -> Tensor:
        """(V, C)."""
        return self.embedding.weight[:, self.offset : self.offset + self.width]


def embedding_table(model: ChatModel) -> Tensor:
    """(V, R): the row of each id in the embedding and, if the head has rows of its own, in the head."""
    tables = [model.model.embed_tokens.weight]
    if not model.config.tie_word_embeddings:
        tables.append(model.lm_head.weight)
    return torch.cat(tables, dim=1).detach()


def with_embedding_table(model: ChatModel, table: Tensor) -> ChatModel:
    """A copy of the model with other rows (V, R)."""
    old = tuple(name.removesuffix("weight") for name in TABLES)  # tables made from bytes have many weights
    weights = {name: weight.clone() for name, weight in model.state_dict().items() if not name.startswith(old)}
    parts = table.detach().split(model.config.hidden_size, dim=1)
    weights |= {name: part.contiguous() for name, part in zip(TABLES, parts, strict=False)}
    with torch.device("meta"):
        other = ChatModel(replace(model.config, vocab_size=len(table)))
    other.load_state_dict(weights, assign=True)
    other.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    return other.eval()


# The evaluator, which also fine-tunes a model together with the network that makes its embeddings from bytes.

LEARNING_RATE = 0.001  # of the matrices
TOKENS_PER_STEP = 4096
MAX_ROW = 1024  # tokens; published models have contexts of many thousands, of which no row fits into memory


@dataclass(frozen=True)
class EmbeddingEvaluator:
    """A trained model, its tokenizer, how it was trained, and the records that it is measured on."""

    model: ChatModel
    tokenizer: ChatTokenizer
    template: TemplateName
    prompt_loss_weight: float  # the weight of what the assistant reads, in training
    records: list[Record]

    def corpus(self, tokenizer: ChatTokenizer | None = None) -> Corpus:
        """The records, encoded by the model's own tokenizer or another one."""
        return Corpus.from_records(self.records, tokenizer or self.tokenizer, self.template)

    def bits_per_byte(self, table: Tensor, corpus: Corpus) -> BitsPerByte:
        """Bits per byte of a corpus with the rows (V, R) of another table; of all text only if that was trained."""
        model = with_embedding_table(self.model, table)
        nats = corpus.nats(model.config.max_position_embeddings, make_batch_scorer(model))
        return corpus.bits(nats, trained_only=self.prompt_loss_weight == 0)._asdict()

    def fine_tuned(
        self, embedding: ByteEmbedding, tokenizer: ChatTokenizer, train: EncodedSplit, *, steps: int, seed: int
    ) -> ChatModel:
        """The model after some steps of training, as it was trained before, with rows made from bytes.

        `embedding` is trained with it. Raises ValueError if no conversation has anything to train on.
        """
        model, width = with_embedding_table(self.model, embedding.table()), self.model.config.hidden_size
        if model.config.tie_word_embeddings:
            model.model.embed_tokens = embedding
        else:
            model.model.embed_tokens = EmbeddingSlice(embedding, 0, width)
            model.lm_head = EmbeddingSlice(embedding, width, width)
        context, vocabulary = min(model.config.max_position_embeddings, MAX_ROW), tokenizer.vocabulary
        spans = truncate_conversations(train, context, self.template, vocabulary.special)
        if not len(spans.starts):
            raise ValueError(f"none of {len(train.offsets) - 1} conversations has anything to train on")
        row_length = min(context, 64 * -(-int(spans.packed_lengths.max()) // 64))
        dataset = PackedDataset(train, spans, row_length, vocabulary.special)
        rows_per_step = max(1, TOKENS_PER_STEP // row_length)
        is_large = model.computes_loss_in_blocks  # of which the activations of one row take gigabytes
        rows_per_batch = 1 if is_large else rows_at_once(rows_per_step, row_length, len(vocabulary.tokens))
        trainer = Trainer(
            model,
            muon_adamw(model, LEARNING_RATE, torch.float32),
            torch.tensor(vocabulary.byte_lengths),
            steps=steps,
            prompt_weight=self.prompt_loss_weight,
            precision="float32",
            compiled=False,
        )
        rows = dataset.endless_rows(seed)
        for _ in progress(range(steps), "tune", unit="step"):
            trainer.step(dataset.batches(list(islice(rows, rows_per_step)), rows_per_batch))
        return with_embedding_table(model, embedding.table())


def make_evaluator(
    model: Path, tokens: Path, vocabulary: Vocabulary, test: Path, conversations: int
) -> tuple[EmbeddingEvaluator, dict[str, Any]]:
    """The evaluator of a trained model, and its metadata. Raises ValueError where the files do not fit together."""
    if check_manifest(model) != vocabulary.fingerprint:
        raise ValueError(f"{model} was trained with another tokenizer: run the train_model stage anew")
    if read_meta(tokens).fingerprint != vocabulary.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer: run the encode stage anew")
    network, content = load_chat_model(model, torch.device("cpu"))
    metadata: dict[str, Any] = content["chatmill"]
    scored = read_test_set(test, conversations).records
    weight = metadata.get("prompt_loss_weight", 1.0)
    evaluator = EmbeddingEvaluator(network, ChatTokenizer(vocabulary), metadata["template"], weight, scored)
    return evaluator, metadata


# What the stage train_soft_tokenizer measures of the model with other rows.


def measure_plugged(
    evaluator: EmbeddingEvaluator, dataset: EmbeddingDataset, predicted: Tensor, plugged: Tensor
) -> dict[str, BitsPerByte]:
    """Bits per byte with the model's table, with the rows `plugged` (V, R), and with predicted rows of held-out tokens.

    The latter are from `predicted` (N, R), by a network that was not trained on them; the baseline `held_out_mean` has
    the mean row in their place.
    """
    table, corpus, ids = embedding_table(evaluator.model), evaluator.corpus(), dataset.ids[dataset.held_out]
    held_out = table.index_copy(0, ids, predicted[dataset.held_out])
    mean = table.index_copy(0, ids, dataset.rows[~dataset.held_out].mean(dim=0).expand(len(ids), -1))
    tables = {"table": table, "plugged_in": plugged, "held_out": held_out, "held_out_mean": mean}
    return {name: evaluator.bits_per_byte(rows, corpus) for name, rows in tables.items()}


def measure_noisy(evaluator: EmbeddingEvaluator, plugged: Tensor) -> dict[str, dict[str, BitsPerByte]]:
    """Bits per byte of noisy records, with the model's table and with the rows `plugged` (V, R)."""
    tables = {"table": embedding_table(evaluator.model), "plugged_in": plugged}
    result: dict[str, dict[str, BitsPerByte]] = {}
    for kind in NOISE_KINDS:
        corpus = replace(evaluator, records=add_noise(evaluator.records, kind)).corpus()
        result[kind] = {name: evaluator.bits_per_byte(rows, corpus) for name, rows in tables.items()}
    return result


# The model with another tokenizer.

MAX_ENCODED_BYTES = 100_000_000  # of conversations that another tokenizer encodes, whose tokens are held in memory


def transferred_embedding(
    encoder: ByteEncoder, vocabulary: Vocabulary, known: Vocabulary, table: Tensor, counts: np.ndarray
) -> ByteEmbedding:
    """The embedding for another vocabulary than the `known` one of a model with the rows `table` (V, R).

    Control tokens keep their rows by name. All others get the row of the rarest token, by `counts` (V,), which carries
    little meaning; those of text are then made from their bytes.
    """
    named = {known.tokens[i]: i for i in known.special.values()}
    unknown = int(counts.argmin())
    entries = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    rows = [named.get(token, unknown) if kind == Kind.CONTROL else unknown for token, kind in entries]
    return ByteEmbedding(encoder, vocabulary, table[rows])


def measure_transfer(
    evaluator: EmbeddingEvaluator,
    file: Path,
    train: Path,
    encoder: ByteEncoder,
    counts: np.ndarray,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """Bits per byte with the tokenizer of a file, before and after fine-tuning; `counts` (V,) are of the model's own.

    Missing control tokens are added to it. Of a large training set every n-th conversation is encoded. Raises
    ValueError for a file that is no tokenizer.
    """
    loaded = load_tokenizer(file)
    try:
        other = ChatTokenizer(add_special_tokens(loaded.vocabulary, []), leading_space=loaded.leading_space)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    known, table = evaluator.tokenizer.vocabulary, embedding_table(evaluator.model)
    corpus = evaluator.corpus(other)
    embedding = transferred_embedding(deepcopy(encoder), other.vocabulary, known, table, counts)
    result = {"plugged_in": evaluator.bits_per_byte(embedding.weight, corpus)}
    if steps:
        with train.open("rb") as lines:
            sample = islice(lines, 0, None, 1 + train.stat().st_size // MAX_ENCODED_BYTES)
            try:
                encoded, _ = encode_lines(sample, other, evaluator.template)
            except LineError as error:
                raise ValueError(f"{train}: a line that the encode stage refuses: {error.reason}") from error
        model = evaluator.fine_tuned(embedding, other, EncodedSplit(*encoded), steps=steps, seed=seed)
        result["tuned"] = evaluator.bits_per_byte(embedding_table(model), corpus)
    return result
