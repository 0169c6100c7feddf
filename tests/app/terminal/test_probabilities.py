import re

import numpy as np
import pytest

from chatmill.app.terminal.tokens import answer_probabilities, show_likeliest, show_probabilities
from chatmill.conversation import IM_END
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from support.tiny import byte_tokenizer, write_model

TOKENIZER = byte_tokenizer()


class FixedEngine:
    """Its logits after a number of tokens are always the same: log probabilities by place in the answer."""

    name, device, num_bytes, fingerprint, template = "fixed", "cpu", 0, "", "chatml"
    vocab_size, context = TOKENIZER.vocab_size, 300

    def __init__(self, choices):
        self.choices, self.prompt, self.cache = choices, 0, []

    @property
    def length(self):
        return len(self.cache)

    def append(self, ids):
        self.cache += ids
        self.prompt = self.prompt or self.length
        logits = np.full(self.vocab_size, -np.inf, np.float32)
        for token, probability in self.choices[self.length - self.prompt].items():
            logits[TOKENIZER.special.get(token, ord(token[0]))] = np.log(probability)
        return logits

    def rewind(self, length):
        del self.cache[length:]


def answered(*choices):
    """A session after an answer whose token at each place is the likeliest of these."""
    session = ChatSession(FixedEngine(choices), TOKENIZER)
    list(session.ask("Hi"))
    return session


def test_each_token_has_its_probability_and_doubtful_ones_their_alternatives(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    choices = {"o": 0.4, "a": 0.3, "\x1b": 0.2, "x": 0.06, "y": 0.04}
    show_probabilities(answered({"H": 1}, choices, {IM_END: 0.995, "!": 0.005}))
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "3 answer tokens, each over its probability in %:",
        "H   o  <|im_end|>",
        "100 40 100",
        "",
        "Where the model hesitated (below 50 %), and the likeliest tokens instead:",
        "2   o 40.0 %: a 30.0 %, ␛ 20.0 %, x 6.0 %",
    ]


def test_the_likeliest_tokens_of_a_place_are_listed_with_the_chosen_one(capsys):
    others = {chr(97 + n): 0.05 for n in range(12)}
    session = answered({"H": 1}, {"o": 0.4} | others, {IM_END: 1})
    session.engine.choices[1]["o"] = 0.01
    show_likeliest(session, 2)
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [row[0] for row in rows[2:]] == [*"abcdefghij", "o"]
    assert rows[-1] == ["o", "111", "1.6", "%", "chosen"]


@pytest.mark.parametrize("number", [0, 4])
def test_a_number_without_a_token_is_told_with_the_range(number):
    session = answered({"H": 1}, {"o": 1}, {IM_END: 1})
    with pytest.raises(ValueError, match=re.escape(f"/why: expected the number of a token, 1 to 3, got {number}")):
        show_likeliest(session, number)


def test_an_answer_that_is_read_again_has_its_probabilities_and_changes_no_later_one(tmp_path):
    model, answers = write_model(tmp_path / "model"), []
    for explains in (False, True):
        session = ChatSession(*load_model(model, "cpu", 1), max_tokens=12)
        first, ids = "".join(session.ask("Hi")), [*session.prompt_ids, *session.answer_ids]
        found = list(answer_probabilities(session, 1)) if explains else []
        answers.append((first, "".join(session.ask("And you?")), session.answer_stats.cached_tokens))
    assert answers[0] == answers[1]
    rows = session.engine.sequence_logits(ids)[-13:-1].astype(np.float64)
    expected = rows[range(12), ids[-12:]] - np.log(np.exp(rows).sum(1))
    np.testing.assert_allclose([one.logprob for one in found], expected, atol=1e-4)
