import numpy as np
import pytest

from chatmill.app.terminal.tokens import show_likeliest, show_probabilities
from chatmill.conversation import IM_END
from chatmill.inference.chat_session import ChatSession
from support.tiny import byte_tokenizer

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
    show_likeliest(session, "2")
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [row[0] for row in rows[2:]] == [*"abcdefghij", "o"]
    assert rows[-1] == ["o", "111", "1.6", "%", "chosen"]


@pytest.mark.parametrize("number", ["me", "0", "4"])
def test_a_place_that_the_answer_does_not_have_is_refused(number):
    with pytest.raises(ValueError, match=f"/why: expected the number of a token, 1 to 3, got '{number}'"):
        show_likeliest(answered({"H": 1}, {"o": 1}, {IM_END: 1}), number)
