from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from chatmill.conversation import Message, Record, conversation_segments, render
from chatmill.encoded.token_files import EncodedSplit
from chatmill.soft_tokenizer.byte_embedding import START, ByteEmbedding, ByteEncoder, ByteEncoderShape
from chatmill.soft_tokenizer.embedding_evaluation import (
    EmbeddingEvaluator,
    embedding_table,
    measure_noisy,
    measure_plugged,
    with_embedding_table,
)
from chatmill.soft_tokenizer.encoder_training import (
    EmbeddingDataset,
    compute_metrics,
    fit_encoder,
    predict,
)
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Kind, byte_level_vocabulary
from support.tiny import CONFIG, random_model

SHAPE = ByteEncoderShape(width=32, layers=1, longest=8, ngrams=0, features=128)
SYLLABLES = [f"{first}{last}".encode() for first in "bcdfghklmnprstvz" for last in "aeiou"]
WORDS = [first + last for first in SYLLABLES[::3] for last in SYLLABLES[::7]]
VOCABULARY = add_special_tokens(byte_level_vocabulary([*SYLLABLES, *WORDS], "bpe", "merge", PATTERNS["qwen2"]), [])
SIZE = len(VOCABULARY.tokens)
CONVERSATIONS = [
    [Message.from_text("user", f"{word.decode()}?"), Message.from_text("assistant", f"{word.decode()} bada!")]
    for word in WORDS[:40]
]
RECORDS = [Record("talk", str(number), render(talk)) for number, talk in enumerate(CONVERSATIONS)]


def make_dataset(rows=None, vocabulary=VOCABULARY, longest=8, seed=1):
    rows = torch.randn(len(vocabulary.tokens), 8, generator=torch.Generator().manual_seed(0)) if rows is None else rows
    counts = np.arange(len(vocabulary.tokens))
    return EmbeddingDataset.from_table(vocabulary, rows, counts, longest=longest, held_out=0.2, seed=seed)


def composed_rows():
    """Rows computed from the bytes of each token, the first of which have the largest weight."""
    letters = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    return torch.stack([sum(letters[byte] / (place + 1) for place, byte in enumerate(t)) for t in VOCABULARY.tokens])


def fitted(dataset, **changes):
    return fit_encoder(SHAPE, dataset, ~dataset.held_out, **{"steps": 60, "contrast": 0.1, "seed": 1} | changes)


def measured(dataset, encoder, train_mask, on):
    return compute_metrics(predict(encoder, dataset.byte_ids), dataset, train_mask, on)


def model_with(tied=True):
    return random_model(replace(CONFIG, vocab_size=SIZE, tie_word_embeddings=tied))


def encoder_for(model):
    encoder = ByteEncoder(SHAPE, embedding_table(model).shape[1])
    torch.nn.init.normal_(encoder.embed_out.weight, std=0.2, generator=torch.Generator().manual_seed(1))
    return encoder


def test_control_tokens_are_apart_and_a_fallback_token_is_its_byte():
    kinds = (Kind.FALLBACK, *VOCABULARY.kinds[1:])
    dataset = make_dataset(vocabulary=replace(VOCABULARY, kinds=kinds))
    assert dataset.ids.tolist() == list(VOCABULARY.text_ids)
    assert dataset.byte_ids[0, :2].tolist() == [START + Kind.FALLBACK, 0]


def test_a_share_that_holds_out_no_token_is_refused():
    with pytest.raises(ValueError, match=r"held_out = 1e-09: 0 of .* are held out.*change held_out"):
        EmbeddingDataset.from_table(
            VOCABULARY, torch.zeros(SIZE, 8), np.ones(SIZE, int), longest=8, held_out=1e-9, seed=1
        )


def test_rows_that_follow_from_bytes_are_known_for_tokens_never_seen():
    dataset = make_dataset(composed_rows())
    encoder = fitted(dataset)
    found = measured(dataset, encoder, ~dataset.held_out, dataset.held_out)
    assert found["variance_explained"]["plain"] > 0.5
    assert found["nearest"]["cosine"] > 20 * found["nearest"]["chance"]


def test_learning_gives_the_same_each_time_and_another_with_another_seed():
    dataset = make_dataset()
    first, again, other = (predict(fitted(dataset, steps=5, seed=seed), dataset.byte_ids) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_rows_give_the_same_model_and_others_in_another_order_other_logits(tied):
    model, ids = model_with(tied), torch.tensor([[1, 5, 300]])
    table, order = embedding_table(model), torch.arange(SIZE).flip(0)
    logits = model(ids)
    assert torch.equal(with_embedding_table(model, table)(ids), logits)
    torch.testing.assert_close(with_embedding_table(model, table[order])(SIZE - 1 - ids), logits[..., order])


def test_the_models_own_rows_cost_nothing_and_unknown_ones_do():
    model = model_with()
    evaluator, dataset = (
        EmbeddingEvaluator(model, ChatTokenizer(VOCABULARY), "chatml", 0.1, RECORDS),
        make_dataset(embedding_table(model)),
    )
    scores = measure_plugged(evaluator, dataset, dataset.rows, embedding_table(model))
    assert scores["table"] == scores["plugged_in"] == scores["held_out"] != scores["held_out_mean"]
    assert measure_noisy(evaluator, embedding_table(model))["case"]["table"]["all"] != scores["table"]["all"]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_training_on_learns_the_network_and_the_model(tied):
    model, tokenizer = model_with(tied), ChatTokenizer(VOCABULARY)
    evaluator, encoder = EmbeddingEvaluator(model, tokenizer, "chatml", 0.1, RECORDS), encoder_for(model)
    encoded = tokenizer.encode_conversations(list(map(conversation_segments, CONVERSATIONS)))
    embedding, before = ByteEmbedding(encoder, VOCABULARY, embedding_table(model)), deepcopy(encoder.state_dict())
    untuned = evaluator.bits_per_byte(embedding.weight, evaluator.corpus())
    tuned = evaluator.fine_tuned(embedding, tokenizer, EncodedSplit(*encoded), steps=30, seed=1)
    assert evaluator.bits_per_byte(embedding_table(tuned), evaluator.corpus())["all"] < untuned["all"]
    assert not torch.equal(encoder.embed_out.weight, before["embed_out.weight"])
    assert torch.equal(embedding_table(tuned), embedding.weight)
