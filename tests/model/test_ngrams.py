import torch

from chatmill.soft_tokenizer.routing import hash_token_ngrams

IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 8]])
PLACES = torch.arange(7)[None]


def test_a_stretch_is_known_by_its_tokens_wherever_it_stands():
    (found,) = hash_token_ngrams(IDS, PLACES, (1, 2, 3))
    assert found[2].tolist() == found[5].tolist()
    assert found[0, 0] == found[3, 0] and found[0, 1] != found[3, 1]  # nothing precedes the first five
    assert len(set(found[:3].flatten().tolist())) == 9


def test_a_stretch_ends_where_its_conversation_begins():
    (packed,) = hash_token_ngrams(IDS, torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), (2, 6))
    assert packed[:3].tolist() == packed[3:6].tolist()


def test_each_conversation_of_a_batch_has_its_own():
    found = hash_token_ngrams(torch.cat([IDS, IDS.flip(1)]), PLACES, (2,))
    assert found[:1].equal(hash_token_ngrams(IDS, PLACES, (2,))) and not found[0].equal(found[1])


def test_the_last_tokens_have_those_of_the_whole():
    whole = hash_token_ngrams(IDS, PLACES, (2, 4))
    for last in (1, 3, 7):
        assert hash_token_ngrams(IDS, PLACES[:, -last:], (2, 4)).equal(whole[:, -last:])


def test_many_stretches_have_different_hashes():
    ids = torch.arange(4096).view(2048, 2)
    found = hash_token_ngrams(ids, torch.arange(2)[None], (2,))[:, 1, 0]
    assert len(found.unique()) == 2048 and (found >= 0).all()
    assert len((found % 8192).unique()) > 0.85 * 2048  # 88 % are expected by chance
