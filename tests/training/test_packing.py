from collections import Counter
from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import BOS, IM_END, IM_START, PAD, LossKind
from chatmill.training.chains import Row, best_fit
from support.packed import SPECIAL, TOKENIZER, encode, pack

CHAINED = st.sampled_from([0.0, 0.5, 1.0])


def single(*conversations):
    """A row of conversations that are in no chain."""
    return Row(np.array(conversations), np.zeros(len(conversations), np.int64))


def members(rows):
    return [[part.tolist() for part in row] for row in rows]


def text_of(dataset, i):
    start, length = dataset.spans.starts[i], dataset.spans.lengths[i]
    return TOKENIZER.decode(dataset.split.ids[start : start + length])


TALKS = st.lists(st.lists(st.text("ab ", min_size=1, max_size=30), min_size=2, max_size=5), min_size=1, max_size=12)


@given(st.lists(st.integers(1, 20), max_size=60))
def test_every_item_is_in_one_row_and_no_row_overflows(lengths):
    rows = best_fit(lengths, 20)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 20 for row in rows)


@given(TALKS, st.integers(2, 90), st.integers(0, 3), st.sampled_from(["chatml", "markers"]), CHAINED)
def test_every_row_has_a_target_and_every_epoch_every_conversation(talks, row_length, seed, template, chained):
    dataset = pack(talks, row_length, template, chained)
    rows = list(dataset.epoch(seed, 0))
    assert Counter(np.concatenate([row.conversations for row in rows]).tolist()) == Counter(range(len(talks)))
    assert (dataset.batch(rows).loss == LossKind.TRAINED).any(axis=1).all()
    assert dataset.measure_epoch(seed)[0] == len(rows) * row_length
    assert chained or not any(row.skipped.any() for row in rows)


@given(TALKS, st.integers(2, 90), CHAINED)
def test_targets_are_the_next_tokens_of_the_same_conversation_or_chain(talks, row_length, chained):
    dataset = pack(talks, row_length, chained=chained)
    batch = dataset.batch(list(dataset.epoch(1, 0)))
    has_target = batch.loss != LossKind.IGNORED
    following = np.roll(batch.conversation_ids, -1, axis=1)
    assert (batch.conversation_ids[has_target] == following[has_target]).all()
    assert (batch.targets[has_target] == np.roll(batch.ids, -1, axis=1)[has_target]).all()
    assert (batch.targets[has_target] != SPECIAL[BOS]).all()


def test_a_row_is_whole_conversations_with_positions_of_their_own():
    dataset = pack([["ab", "c"], ["d", "e"]], 64)
    batch = dataset.batch([single(1, 0)])
    first, second = (dataset.split.ids[slice(*dataset.split.offsets[i : i + 2])] for i in (1, 0))
    used = len(first) + len(second)
    assert batch.ids[0, :used].tolist() == [*first, *second]
    assert batch.positions[0, :used].tolist() == [*range(len(first)), *range(len(second))]
    assert batch.conversation_ids[0].tolist() == [0] * len(first) + [1] * len(second) + [-1] * (64 - used)
    assert set(batch.ids[0, used:]) == {SPECIAL[PAD]}


def test_a_long_conversation_keeps_its_last_messages_behind_bos():
    dataset = pack([["first question", "first answer", "second question", "answer"]], 60)
    assert text_of(dataset, 0) == f"{IM_START}user\nsecond question{IM_END}\n{IM_START}assistant\nanswer{IM_END}"
    assert dataset.batch([single(0)]).ids[0, :2].tolist() == [SPECIAL[BOS], SPECIAL[IM_START]]
    assert len(dataset.spans.not_longer(60).starts) == 0


def test_what_has_nothing_to_train_is_rejected_and_counted():
    dataset = pack([["a", "b"], ["only a question"], ["c", "d"]], 64)
    assert dataset.spans.rejected == 1
    assert [text_of(dataset, i)[-12:-11] for i in range(len(dataset.spans.starts))] == ["b", "d"]


def test_the_order_follows_from_seed_and_epoch_alone():
    dataset = pack([["q" * (i % 7), "a" * (i % 11 + 1)] for i in range(60)], 128)
    one, same, other = (members(islice(dataset.endless_rows(seed), 50)) for seed in (1, 1, 2))
    assert one == same and one != other
    assert members(dataset.epoch(1, 0)) != members(dataset.epoch(1, 1))


def test_batches_are_of_one_shape_and_filled_up_with_padding():
    dataset = pack([["q", "a" * 30] for _ in range(5)], 64)
    batches = dataset.batches(dataset.epoch(0, 0), 3)
    assert [batch.ids.shape for batch in batches] == [(3, 64), (3, 64)]
    assert (batches[1].loss[2] == LossKind.IGNORED).all()


# chains


def test_conversations_of_a_chain_follow_one_another_as_one_chat():
    dataset, chat = pack([["ab", "c"], ["d", "e"]], 96), encode([["d", "e", "ab", "c"]])
    batch, used = dataset.batch([Row(np.array([1, 0]), np.array([0, 1]))]), len(chat.ids)
    assert batch.ids[0, :used].tolist() == chat.ids.tolist()
    assert batch.positions[0, :used].tolist() == [*range(used)]
    assert batch.conversation_ids[0].tolist() == [0] * used + [-1] * (96 - used)
    assert batch.loss[0, : used - 1].tolist() == chat.loss[1:].tolist()


def test_half_of_the_conversations_are_in_chains_that_fill_a_row():
    dataset = pack([["q" * (i % 7 + 1), "a" * (i % 11 + 1)] for i in range(4000)], 512, chained=0.5)
    assert 0.4 < sum(int((row.skipped > 0).sum()) for row in dataset.epoch(0, 0)) / 4000 < 0.5
    assert dataset.batch(list(dataset.epoch(0, 0))).positions.max() > 500
    assert dataset.measure_epoch(0)[1] < 0.03


# documents

DOCUMENTS = st.lists(st.text("ab", min_size=1, max_size=60), min_size=1, max_size=8)


@given(DOCUMENTS, TALKS, st.integers(2, 40), CHAINED)
def test_the_parts_of_documents_are_their_tokens_and_all_of_them_are_trained(documents, talks, context, chained):
    dataset = pack([*documents, *talks], context, chained=chained)
    spans, offsets = dataset.spans, dataset.split.offsets
    number = int(spans.documents.sum())
    covered = [
        i for start, length in zip(spans.starts, spans.lengths, strict=True) for i in range(start, start + length)
    ]
    assert (covered[: offsets[len(documents)]] == np.arange(offsets[len(documents)])).all()
    assert not spans.documents[number:].any() and spans.packed_lengths.max() <= context
    batch = dataset.batch([single(i) for i in range(number)])
    assert (batch.ids[:, 0] == SPECIAL[BOS]).all()
    trained = "".join(TOKENIZER.decode(row) for row in batch.targets[batch.loss == LossKind.TRAINED][:, None])
    assert trained == "".join(f"{text}{IM_END}" for text in documents)


def test_a_document_is_cut_where_the_context_ends_and_a_later_part_follows_bos():
    dataset = pack(["abcdefgh"], 5)
    assert [text_of(dataset, i) for i in range(len(dataset.spans.starts))] == [f"{BOS}abcd", "efgh", IM_END]
    assert dataset.spans.truncated.tolist() == [False, True, True] and dataset.spans.rejected == 0
