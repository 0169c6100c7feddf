import numpy as np

from chatmill.teacher.model_teacher import Candidates, likeliest_of_each

NOTHING = np.zeros(0, np.int64)


def candidates(tokens, others=()):
    """By {token: ids that stand for it}."""
    ids = [np.array(ids) for ids in tokens.values()]
    starts = np.cumsum([0, *map(len, ids[:-1])]) if ids else NOTHING
    return Candidates(np.concatenate([NOTHING, *ids]), starts, np.array(list(tokens), np.int64), np.array(others, int))


def test_a_chance_is_a_share_of_all_that_may_stand_there():
    rows = np.array([[0.125, 0.25, 0.375, 0.25], [0.7, 0.1, 0.1, 0.1]], np.float32)
    each = [
        candidates({5: [0, 1], 7: [2]}),
        candidates({}),
        candidates({5: [0], 6: [1]}, others=[3]),
        candidates({}, others=[1]),
        candidates({9: [3], 8: [0], 7: [2]}),
    ]
    places, left_out = np.array([0, 0, 1, 0, 1]), np.array([-1, -1, 0, -1, -1])
    tokens, chances = likeliest_of_each(rows, places, each, left_out, 2)
    assert tokens.tolist()[:2] == [[5, 7], [0, 0]]  # as likely as each other: by id
    np.testing.assert_allclose(chances, [[0.5, 0.5], [0, 0], [0.1 / 0.9, 0], [0, 0], [0.7 / 0.9, 0.1 / 0.9]], rtol=1e-6)
    assert tokens[2].tolist() == [6, 5]
    assert tokens[4].tolist() == [8, 9]


def test_there_may_be_no_candidate_and_no_place():
    rows = np.ones((1, 4), np.float32)
    for places in (NOTHING, np.array([0])):
        tokens, chances = likeliest_of_each(rows, places, [candidates({})] * len(places), places - 1, 3)
        assert tokens.shape == chances.shape == (len(places), 3)
        assert not tokens.any() and not chances.any()
