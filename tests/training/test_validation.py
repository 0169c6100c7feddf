from dataclasses import replace

import numpy as np
import pytest
import torch

from chatmill.encoded.token_files import Sources, token_byte_lengths
from chatmill.training.distributed import SINGLE_PROCESS
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.trainer import Trainer
from chatmill.training.validation import (
    TOKENS,
    KeptWeights,
    pooled_validation,
    weighted_batches,
    weighted_bits_per_byte,
)
from support.packed import pack
from support.tiny import CONFIG, VOCABULARY, random_model

NAMES = ["letters", "skills", "talk"]
TEXTS = ["xxxx", "yy", "zzzzzzzz"]  # of the answers of each source


def held_out(numbers=(30, 20, 10), row_length=64):
    talks = [[f"{i}", TEXTS[source]] for source, number in enumerate(numbers) for i in range(number)]
    return replace(pack(talks, row_length), sources=Sources(NAMES, np.repeat(np.arange(3, dtype=np.uint16), numbers)))


def trainer():
    model, num_bytes = random_model(CONFIG), torch.from_numpy(token_byte_lengths(VOCABULARY))
    optimizer = MuonAdamW(model, 0.01, torch.float32)
    return Trainer(model, optimizer, num_bytes, steps=10, prompt_weight=0.1, precision="float32", compiled=False)


def letters_of(batches):
    """The letters of the answers in batches."""
    ids = set(np.concatenate([batch.ids.ravel() for batch in batches]).tolist())
    return {letter for letter in "xyz" if VOCABULARY.tokens.index(letter.encode()) in ids}


def test_each_source_is_measured_by_itself_and_one_without_a_share_is_not():
    found = weighted_batches(held_out(), np.array([0.25, 0, 0.75]), 2, SINGLE_PROCESS)
    assert [(share, letters_of(batches)) for share, batches in found] == [(0.25, {"x"}), (0.75, {"z"})]


def test_validation_is_told_apart_by_source_and_the_whole_stays_what_it_was():
    one, data = trainer(), held_out()
    batches, sources = pooled_validation(data, 2, SINGLE_PROCESS)
    assert sources == dict(enumerate(NAMES))
    whole, parts = one.evaluate_sources(batches, [*sources])
    assert whole == one.evaluate(batches)
    for of_source, source in zip(parts, sources, strict=True):
        alone = one.evaluate(pooled_validation(data.of_source(source), 2, SINGLE_PROCESS).batches)
        assert of_source.bytes == alone.bytes and of_source.bits_per_byte == pytest.approx(
            alone.bits_per_byte, rel=1e-5
        )
        assert of_source.loss == pytest.approx(alone.loss, rel=1e-5)


def test_a_single_source_is_not_told_apart():
    assert pooled_validation(held_out((0, 20, 0)), 2, SINGLE_PROCESS).sources == {}
    assert pooled_validation(held_out((0, 0, 0)), 2, SINGLE_PROCESS).sources == {}


def test_the_loss_is_the_mean_of_those_of_the_sources_by_their_shares():
    shares, by_source, one = np.array([0.25, 0, 0.75]), [], trainer()
    for source in (0, 2):
        alone = held_out(tuple(number * (i == source) for i, number in enumerate((30, 20, 10))))
        by_source.append(one.evaluate(pooled_validation(alone, 2, SINGLE_PROCESS).batches).bits_per_byte)
    expected = 0.25 * by_source[0] + 0.75 * by_source[1]
    found = weighted_batches(held_out(), shares, 2, SINGLE_PROCESS)
    assert weighted_bits_per_byte(one, found) == pytest.approx(expected, rel=1e-5)
    assert abs(by_source[0] - by_source[1]) > 0.01


def test_sources_that_are_not_held_out_leave_their_share_to_the_others():
    one, data = trainer(), held_out((30, 0, 10))
    both, all_three = (
        weighted_bits_per_byte(one, weighted_batches(data, np.array(shares), 2, SINGLE_PROCESS))
        for shares in ([0.5, 0, 0.5], [0.25, 0.5, 0.25])
    )
    assert both == pytest.approx(all_three, rel=1e-12)


def test_a_large_set_is_read_in_part_each_source_by_its_share():
    large = held_out((5000, 4000, 4000))
    rows = [
        sum(len(batch.ids) for batch in batches)
        for _, batches in weighted_batches(large, np.array([0.5, 0.25, 0.25]), 1, SINGLE_PROCESS)
    ]
    assert rows == [TOKENS // 128, TOKENS // 256, TOKENS // 256]
    assert sum(len(batch.ids) for batch in pooled_validation(large, 1, SINGLE_PROCESS).batches) == TOKENS // 64


def test_the_weights_that_are_kept_are_best_on_the_weighted_set():
    one = trainer()
    batches = weighted_batches(held_out(), np.array([0.5, 0, 0.5]), 2, SINGLE_PROCESS)
    kept, expected = KeptWeights("best", batches), weighted_bits_per_byte(one, batches)
    kept.compare(one, None)
    assert kept.step == 0
    one.completed_steps = 3
    kept.compare(one, 99.0)
    assert (kept.step, kept.bits_per_byte) == (3, expected)
    one.completed_steps = 4
    kept.compare(one, 0.0)
    assert kept.step == 3
