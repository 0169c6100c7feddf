import random
from itertools import combinations

import numpy as np

from chatmill.conversation import Message, render
from chatmill.datasets.near_duplicates.candidates import (
    ALL_PAIRS,
    IS_PART,
    IS_WHOLE,
    KEY_DTYPE,
    WITHIN,
    RecordTable,
    candidate_pairs,
)
from chatmill.datasets.near_duplicates.search import KeyBatches
from chatmill.datasets.split import DUPLICATE, TRAIN


def keys_of(pairs, flags=WITHIN):
    keys = np.array(pairs, KEY_DTYPE)
    keys["record"] |= flags
    return keys


def records(states, sources=(0,), sizes=None):
    return RecordTable(
        np.array(states, np.uint8), np.array(sizes or [100] * len(states), np.uint32), np.array(sources, np.int64)
    )


def test_records_that_share_a_key_are_a_pair_once():
    keys = keys_of([(5, 1), (5, 0), (7, 0), (7, 1), (9, 2), (5, 0)])
    assert candidate_pairs(keys, records([TRAIN] * 3)).tolist() == [[0, 1]]


def test_one_of_a_pair_is_in_train_and_none_is_dropped():
    keys = keys_of([(5, number) for number in range(5)])
    found = candidate_pairs(keys, records([0, 1, TRAIN, DUPLICATE, TRAIN]))
    assert found.tolist() == [[0, 2], [1, 2], [0, 4], [1, 4], [2, 4]]


def test_a_source_is_compared_with_itself_only_if_both_records_say_so():
    keys = np.concatenate([keys_of([(5, 0), (5, 1)]), keys_of([(5, 2), (5, 3)], 0)])
    assert candidate_pairs(keys, records([TRAIN] * 4)).tolist() == [[0, 1]]
    assert candidate_pairs(keys, records([TRAIN] * 4, (0, 2))).tolist() == [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3]]


def test_a_part_is_sought_by_its_longest_beginning_in_longer_texts():
    keys = np.concatenate([keys_of([(5, 0)], WITHIN | IS_PART | IS_WHOLE), keys_of([(5, 1), (5, 2)], WITHIN | IS_PART)])
    assert candidate_pairs(keys, records([TRAIN] * 3, sizes=[100, 200, 50])).tolist() == [[0, 1]]


def test_of_a_common_key_each_source_gives_its_first_records_the_held_out_ones_before():
    count = 20 * ALL_PAIRS
    states = [TRAIN] * count
    states[count // 2 - 1] = states[-1] = 0
    found = candidate_pairs(keys_of([(5, number) for number in range(count)], 0), records(states, (0, count // 2)))
    assert {(number, count - 1) for number in range(count // 2 - 1)} <= set(map(tuple, found.tolist()))
    assert {(count // 2 - 1, number) for number in range(count // 2, count - 1)} <= set(map(tuple, found.tolist()))
    assert len(found) < 10 * count


def test_nearly_all_pairs_that_are_alike_by_brute_force_are_found():
    choose = random.Random(1)
    vocabulary = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]
    texts = []
    for _ in range(150):
        words = choose.choices(vocabulary, k=choose.randrange(5, 90))
        texts.append(words)
        for _ in range(choose.randrange(3)):
            words = list(words)
            for place in choose.sample(range(len(words)), choose.randrange(max(2, len(words) // 12))):
                words[place] = choose.choice(vocabulary)
            texts.append(words)
    shingles = [{tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} for words in texts]
    pairs = combinations(range(len(texts)), 2)
    alike = {(i, j) for i, j in pairs if len(shingles[i] & shingles[j]) >= 0.8 * len(shingles[i] | shingles[j])}
    batches = KeyBatches()
    for number, words in enumerate(texts):
        message = [Message.from_text("user", " ".join(words)), Message.from_text("assistant", "Yes.")]
        batches.add(render(message), number, within=True)
    found = set(map(tuple, candidate_pairs(batches.keys(), records([TRAIN] * len(texts))).tolist()))
    assert len(alike) > 50
    assert len(alike - found) <= 0.01 * len(alike)
