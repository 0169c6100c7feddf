from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import BOS, IM_END, IM_START, PAD, LossKind
from chatmill.encoded.token_files import EncodedSplit
from chatmill.training.chains import Row, best_fit
from chatmill.training.packing import PackedDataset, truncate_conversations
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
    batch = dataset.batch(rows)
    assert (batch.loss == LossKind.TRAINED).any(axis=1).all()
    assert dataset.measure_epoch(seed) == (batch.ids.size, pytest.approx((batch.conversation_ids < 0).mean()))
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


ANSWER = f"{IM_START}assistant\nanswer{IM_END}"
TURN = f"{IM_START}user\nsecond question{IM_END}\n{ANSWER}"
IN_MARKERS = f"\n\nHuman: second question\n\nAssistant: answer{IM_END}"
ASKED = ["first question", "first answer", "second question", "answer"]


@pytest.mark.parametrize(
    ("template", "talk", "context", "kept"),
    [
        ("chatml", ASKED, 12, f"ant\nanswer{IM_END}"),
        ("chatml", ASKED, 41, ANSWER),
        ("chatml", ASKED, 42, TURN),
        ("chatml", ASKED, 66, TURN),
        ("markers", ASKED, 44, IN_MARKERS[1:]),
        ("markers", ASKED, 45, IN_MARKERS),
        ("markers", ["Now: first question", *ASKED[1:]], 90, IN_MARKERS),
        ("markers", ["a", "b", "c" * 40], 40, f"Human: a\n\nAssistant: b{IM_END}"),
    ],
)
def test_of_a_long_conversation_remain_the_last_messages_that_fit_behind_bos(template, talk, context, kept):
    dataset = pack([["d"], talk], context, template)
    (ids,) = dataset.batch([single(0)]).ids
    assert text_of(dataset, 0) == kept and TOKENIZER.decode(ids[ids != SPECIAL[PAD]]) == f"{BOS}{kept}"
    assert dataset.spans.num_cut == dataset.spans.rejected == 1


def test_conversations_that_are_not_longer_are_whole():
    spans = pack([["a", "b"], ASKED, ["a", "bc"]], 60).spans
    assert [spans.not_longer(spans.lengths[2] - less).starts.tolist() for less in (0, 1, 2)] == [
        spans.starts[[0, 2]].tolist(), spans.starts[:1].tolist(), [],
    ]  # fmt: skip
    assert [pack([["a", "b"]], int(spans.lengths[0]) - less).spans.num_cut for less in (0, 1)] == [0, 1]


def test_how_many_tokens_a_split_has_makes_no_difference_to_what_remains_of_each_conversation():
    few, times = encode([["q", "a" * 2000], ["only a question"], ["q" * 1000, "a" * 1200]]), 4500
    shifts = np.arange(times)[:, None] * len(few.ids)
    offsets = np.append((shifts + few.offsets[:-1]).ravel(), times * len(few.ids))
    many = EncodedSplit(np.tile(few.ids, times), np.tile(few.loss, times), offsets)
    one, all = (truncate_conversations(split, 2048, "chatml", SPECIAL) for split in (few, many))
    assert all.starts.tolist() == (shifts + one.starts).ravel().tolist() and all.rejected == times
    assert all.lengths.tolist() == one.lengths.tolist() * times and all.num_cut == times
    rows = list(PackedDataset(many, all, 2048, SPECIAL).epoch(0, 0))
    assert sorted(i for row in rows for i in row.conversations) == list(range(2 * times))


def test_what_has_nothing_to_train_is_rejected_and_counted():
    dataset = pack([["a", "b"], ["only a question"], ["c", "d"]], 64)
    assert dataset.spans.rejected == 1
    assert [text_of(dataset, i)[-12:-11] for i in range(len(dataset.spans.starts))] == ["b", "d"]
    assert [list(pack(talks, 64).epoch(0, 0)) for talks in ([], [["only a question"]])] == [[], []]
    with pytest.raises(ValueError, match="context = 1: expected 2 tokens or more, as one alone predicts none"):
        pack([["a", "b"]], 1)


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
    rows = list(dataset.epoch(0, 0))
    for processes in (1, 2, 3):
        ranks = [dataset.batches(rows, 2, rank, processes) for rank in range(processes)]
        assert [[batch.ids.shape for batch in rank] for rank in ranks] == [[(2, 64)] * -(-3 // processes)] * processes
        found = np.stack([np.concatenate([batch.ids for batch in rank]) for rank in ranks], axis=1).reshape(-1, 64)
        assert (found[:5] == dataset.batch(rows).ids).all() and (found[5:] == SPECIAL[PAD]).all()


# chains


def test_conversations_of_a_chain_follow_one_another_as_one_chat():
    dataset, chat = pack([["ab", "c"], ["d", "e"]], 96), encode([["d", "e", "ab", "c"]])
    batch, used = dataset.batch([Row(np.array([1, 0]), np.array([0, 1]))]), len(chat.ids)
    assert batch.ids[0, :used].tolist() == chat.ids.tolist()
    assert batch.positions[0, :used].tolist() == [*range(used)]
    assert batch.conversation_ids[0].tolist() == [0] * used + [-1] * (96 - used)
    assert batch.loss[0, : used - 1].tolist() == chat.loss[1:].tolist()


@pytest.mark.parametrize("chained", [0.25, 1.0])
def test_a_share_of_the_conversations_is_in_chains_that_fill_a_row(chained):
    dataset = pack([["q" * (i % 7 + 1), "a" * (i % 11 + 1)] for i in range(2000)], 512, chained=chained)
    rows = list(dataset.epoch(0, 0))
    assert 0.8 * chained < sum(int((row.skipped > 0).sum()) for row in rows) / 2000 < chained
    assert dataset.batch(rows).positions.max() > 500
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
    for row in dataset.epoch(0, 0):
        continues = np.append(row.skipped > 0, False)
        in_chains = row.conversations[continues[:-1] | continues[1:]]
        assert not (spans.truncated | spans.documents)[in_chains].any()
    batch = dataset.batch([single(i) for i in range(number)])
    assert (batch.ids[:, 0] == SPECIAL[BOS]).all()
    trained = "".join(TOKENIZER.decode(row) for row in batch.targets[batch.loss == LossKind.TRAINED][:, None])
    assert trained == "".join(f"{text}{IM_END}" for text in documents)


def test_a_document_is_cut_where_the_context_ends_and_a_later_part_follows_bos():
    dataset = pack(["abcdefgh", "abcdefg"], 5)
    parts = [text_of(dataset, i) for i in range(len(dataset.spans.starts))]
    assert parts == [f"{BOS}abcd", "efgh", IM_END, f"{BOS}abcd", f"efg{IM_END}"]
    assert dataset.spans.truncated.tolist() == [False, True, True, False, True] and dataset.spans.num_cut == 0
