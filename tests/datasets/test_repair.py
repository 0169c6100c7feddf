from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, check_turns
from chatmill.datasets.formats.example import as_turns
from chatmill.datasets.repair import SourceParameters, repair


def turns(*said):
    return as_turns(Message.from_text(role, text) for role, text in said)


def parameters(**rules):
    return SourceParameters(path="raw", format="messages", **rules)


def repaired(*said, **rules):
    result = repair(turns(*said), parameters(**rules))
    conversation = [(turn.message.role, turn.message.text) for turn in result.turns]
    return conversation, [(part.reason, part.extent) for part in result.dropped], result.rules


PAIR = (("user", "Hi"), ("assistant", "Hello"))


def test_a_late_system_message_comes_first():
    conversation, dropped, rules = repaired(("system", "Be kind."), *PAIR, ("system", "Be short."), *PAIR)
    assert conversation == [("system", "Be kind.\n\nBe short."), *PAIR, *PAIR]
    assert (dropped, rules) == ([], ["late_system"])


def test_messages_of_one_speaker_are_joined():
    said = (("user", "Hi"), ("user", " "), ("user", "there"), ("assistant", "Hello"))
    assert repaired(*said) == (
        [("user", "Hi\n\nthere"), ("assistant", "Hello")],
        [("empty_turn", (1, 1))],
        ["same_role"],
    )
    assert repaired(*said, join_with=" ")[0][0] == ("user", "Hi there")
    assert repaired(*said, same_role="reject")[0][:2] == [("user", "Hi"), ("user", "there")]


def test_a_greeting_of_the_assistant_is_left_out_or_not_trained():
    assert repaired(("assistant", "Welcome"), *PAIR) == ([*PAIR], [("assistant_first", (1, 7))], [])
    result = repair(turns(("assistant", "Welcome"), *PAIR), parameters(assistant_first="keep"))
    assert [(turn.message.text, turn.train) for turn in result.turns] == [
        ("Welcome", False),
        ("Hi", None),
        ("Hello", None),
    ]
    assert (result.dropped, result.rules) == ([], ["assistant_first"])


SAID = st.tuples(st.sampled_from(["system", "user", "assistant"]), st.sampled_from(["", " ", "a", "bc"]))


@given(st.lists(SAID, max_size=8))
def test_a_repaired_conversation_takes_turns_unless_a_message_is_blank(said):
    result = repair(turns(*said), parameters())
    conversation = [turn.message for turn in result.turns]
    if (
        all(message.text.strip() for message in conversation)
        and any(m.role == "user" for m in conversation)
        and conversation[-1].role == "assistant"
    ):
        check_turns(conversation)
