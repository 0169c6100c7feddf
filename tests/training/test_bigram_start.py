from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from chatmill.encoded.token_files import read_meta, read_sources, read_split
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.training import new_model as bigram_start
from chatmill.training.new_model import count_bigrams, start_from_bigrams
from chatmill.training.packing import PackedDataset, truncate_conversations
from support.tiny import CONFIG, VOCABULARY
from support.training_runs import SOURCES, read_curve, run_training, write_tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"), answers=("yes", "no"))


@pytest.fixture
def dataset(tokens):
    split = read_split(tokens / "tokens", "train")
    spans = truncate_conversations(split, 64, "chatml", VOCABULARY.special)
    sources = read_sources(tokens / "tokens", "train", read_meta(tokens / "tokens"))
    return PackedDataset(split, spans, 64, VOCABULARY.special, sources=sources)


@pytest.mark.parametrize("weights", [{}, {SOURCES[0]: 0.0}, {SOURCES[0]: 2.0, SOURCES[1]: 0.5}])
def test_bigrams_are_counted_within_conversations_as_often_as_these_are_read(dataset, weights):
    found, expected = count_bigrams(replace(dataset, weights=weights), 1), Counter()
    for number, (begin, end) in enumerate(pairwise(dataset.split.offsets)):
        ids = dataset.split.ids[begin:end].tolist()
        for pair in pairwise(ids):
            expected[pair] += weights.get(SOURCES[dataset.sources.of_conversations[number]], 1.0)
    total = expected.total()
    assert dict(zip(zip(found.first.tolist(), found.second.tolist(), strict=True), found.weights, strict=True)) == {
        pair: pytest.approx(count / total) for pair, count in expected.items() if count
    }


def entropy(bigrams):
    """The mean nats of the second token, given the first."""
    of_first = np.bincount(bigrams.first, bigrams.weights)[bigrams.first]
    return -(bigrams.weights * np.log(bigrams.weights / of_first)).sum()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("most", [1 << 24, 8 * CONFIG.vocab_size])
def test_a_model_without_its_layers_then_predicts_as_the_counts_do(dataset, monkeypatch, most, tied):
    monkeypatch.setattr(bigram_start, "_MAX_LOGITS", most)
    bigrams, model = count_bigrams(dataset, 1), ChatModel(replace(CONFIG, tie_word_embeddings=tied))
    initialise(model, 1)
    start_from_bigrams(model, bigrams, 1, "float32")
    with torch.no_grad():
        nats = -model(torch.from_numpy(bigrams.first)[:, None])[:, 0].log_softmax(1)
    reached = (nats.numpy()[np.arange(len(nats)), bigrams.second] * bigrams.weights).sum()
    furthest = (1.3 if tied else 0.1) + (0 if most > 1 << 20 else 0.4)  # tied rows predict themselves, too
    assert entropy(bigrams) < reached < entropy(bigrams) + furthest < np.log(CONFIG.vocab_size)
    assert all(weight.grad is None for weight in model.parameters())


def test_training_begins_there_and_gives_the_same_bytes_each_time(tokens, tmp_path):
    starts = {"bigrams": "bigrams", "again": "bigrams", "random": "random"}
    runs = {name: run_training(tokens, tmp_path / name, start=start) for name, start in starts.items()}
    weights = {name: (folder / "model/model.safetensors").read_bytes() for name, folder in runs.items()}
    assert weights["bigrams"] == weights["again"] != weights["random"]
    losses = {name: float(read_curve(folder)[0]["loss"]) for name, folder in runs.items()}
    assert losses["bigrams"] < losses["random"] - 1
