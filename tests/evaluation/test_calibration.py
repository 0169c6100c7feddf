import numpy as np
import pytest

from chatmill.conversation import Message
from chatmill.evaluation.calibration import calibration, likeliest
from chatmill.evaluation.corpus import Corpus
from support.tiny import byte_tokenizer


class Guess:
    """An engine that says everywhere, with the chance 3/4, that "a" comes next."""

    name = "guess"

    def sequence_logits(self, ids):
        logits = np.zeros((len(ids), VOCAB_SIZE), np.float32)
        logits[:, ord("a")] = np.log(3 * (VOCAB_SIZE - 1))
        return logits


TOKENIZER = byte_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size


def corpus_of(*answers):
    messages = [[Message.from_text("user", "aaaa"), Message.from_text("assistant", text)] for text in answers]
    return Corpus.from_conversations(messages, TOKENIZER, "chatml")


def test_a_chance_is_compared_with_how_often_it_comes_true_in_answers():
    found = calibration(Guess(), 64, corpus_of("ab", "ba", "bb"))
    assert found["chance"] == {"0.7": pytest.approx(0.75)}
    assert (found["right"]["0.7"].value, found["right"]["0.7"].n) == (pytest.approx(1 / 3), 6)
    assert found["error"] == pytest.approx(0.75 - 1 / 3)


def test_what_is_behind_the_context_does_not_count():
    whole = corpus_of("aaaabbbb")
    cut = int(np.flatnonzero(whole.is_trained & whole.is_scored)[4])
    assert calibration(Guess(), cut, whole)["right"]["0.7"].value == 1


def test_without_answers_there_is_nothing():
    assert (
        calibration(Guess(), 64, Corpus.from_conversations([[Message.from_text("user", "a")]], TOKENIZER, "chatml"))
        == {}
    )


def test_the_likeliest_token_by_hand():
    chances, tokens = likeliest(np.log([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]]))
    assert chances.tolist() == pytest.approx([0.75, 0.5, 0.9]) and tokens.tolist() == [1, 0, 0]
