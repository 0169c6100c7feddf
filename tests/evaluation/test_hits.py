import numpy as np
import pytest

from chatmill.conversation import Message, Part
from chatmill.evaluation.hits import MAX_PROMPT_BYTES, NUM_CANDIDATES, hits_at_1, make_rankings
from chatmill.inference.chat_template import CHATMILL_TEMPLATES, ExternalTemplate
from support.tiny import byte_tokenizer


def talk(key, reply=None):
    return [Message.from_text("user", f"Say {key}."), Message.from_text("assistant", reply or f"Here is {key:03}.")]


TALK = [talk(key) for key in range(30)]


def uniform(windows):
    """Nats of a model that finds every token as likely as any other."""
    return [np.full(len(ids) - 1, 5.5) for ids in windows]


def hits(score_windows, rankings, template=CHATMILL_TEMPLATES["chatml"], context=512):
    return hits_at_1(rankings, byte_tokenizer(), template.continue_final_message, context, score_windows)


@pytest.mark.parametrize(
    "template", [*CHATMILL_TEMPLATES.values(), ExternalTemplate("plain", []), ExternalTemplate("markers", [])]
)
def test_a_model_of_equal_logits_is_at_chance(template):
    assert hits(uniform, make_rankings(TALK, 3), template) == [1 / NUM_CANDIDATES] * 3


def knows(windows, answer):
    """Nats of a model that repeats what it was asked for, or says anything else."""
    nats = uniform(windows)
    for ids, scores in zip(windows, nats, strict=True):
        text = bytes(i for i in ids.tolist() if i < 256).decode()
        asked, said = text.split("Say ")[1].split(".")[0], text.split("Here is ")[1].split(".")[0]
        scores[-2:] = 1.0 if (int(asked) == int(said)) == answer else 9.0
    return nats


def test_a_model_that_knows_the_reply_has_every_hit_and_one_that_avoids_it_none():
    rankings = make_rankings(TALK, 100)
    assert hits(lambda windows: knows(windows, True), rankings) == [1.0] * 30
    assert hits(lambda windows: knows(windows, False), rankings) == [0.0] * 30


def test_a_model_that_gives_no_number_has_no_hit():
    rankings = make_rankings(TALK, 3)
    assert hits(lambda windows: [np.full(len(ids) - 1, np.nan) for ids in windows], rankings) == [0.0] * 3


def test_the_mean_is_over_the_tokens_of_the_reply_alone():
    """Prompts that are unlikely, and replies of different length, change nothing."""

    def score(windows):
        nats = [np.full(len(ids) - 1, 1000.0 * len(ids)) for ids in windows]
        for ids, scores in zip(windows, nats, strict=True):
            scores[-(len(ids) - ids.tolist().index(ord("@"))) :] = 2.0
        return nats

    conversations = [talk(key, "@" + "x" * key) for key in range(40)]
    assert hits(score, make_rankings(conversations, 40)) == [1 / NUM_CANDIDATES] * 40


def test_candidates_are_20_different_replies_of_other_conversations_nearest_in_length():
    conversations = [talk(0, "x"), *(talk(key, "y" * key) for key in range(1, 60)), talk(60, "y" * 7)]
    true, *others = make_rankings(conversations, 1)[0].candidates
    assert true == "x" and sorted(others) == ["y" * key for key in range(1, 20)]
    true, *others = make_rankings(conversations, 31)[30].candidates
    assert true == "y" * 30 and sorted(map(len, others)) == [*range(20, 30), *range(31, 40)]


def test_too_few_replies_make_no_ranking_and_calls_are_left_out():
    call = Message("assistant", (Part("call", "1+1"), Part("output", "2"), Part("text", "Two.")))
    assert make_rankings(TALK[:19], 5) == []
    assert make_rankings([*TALK[:19], [*TALK[0][:1], call], TALK[0][:1], talk(1)], 5) == []


def test_a_long_prompt_loses_its_oldest_turns_and_the_window_its_beginning():
    old = [Message.from_text("user", "x" * MAX_PROMPT_BYTES), Message.from_text("assistant", "Old.")]
    ranking = make_rankings([[*old, *TALK[0]], *TALK], 1)[0]
    assert ranking.prompt == TALK[0][:1]
    lengths = []
    hits(lambda windows: lengths.extend(map(len, windows)) or uniform(windows), [ranking], context=16)
    assert set(lengths) == {17}
