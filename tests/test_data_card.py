import pytest

from chatmill.conversation import Message, Part, Record, render
from chatmill.data_card import Spread, find_oddities, make_card


def record(*texts, train=None):
    messages = [Message.from_text(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
    return Record("chat", "g", render(messages), train=train)


def test_messages_bytes_and_copies_are_counted():
    card = make_card([*[record("Hi", "Höh")] * 3, record("Oh", "No", "So", "Yes")])
    assert (card.conversations, card.messages, card.bytes) == (4, {"user": 5, "assistant": 5}, 27)
    assert (card.trained_bytes, card.duplicates, card.frequent_answers) == (17, 2, {"Höh": 3})
    assert card.turns == Spread(2, 4, 4)


def test_flags_decide_what_is_trained_and_tool_output_is_not():
    tools = [Message.from_text("user", "1+1?"), Message("assistant", (Part("call", "1+1"), Part("output", "2")))]
    flags = record("Hi", "Hello", "Bye", "Later", train=[None, False, None, None])
    assert make_card([Record("chat", "g", render(tools))]).trained_bytes == 3
    assert make_card([flags]).trained_bytes == 5


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("FranÃ§ais", {"mojibake"}),
        ("a <b>bold</b> claim", {"HTML"}),
        ("see https://example.org/a?b", {"URLs"}),
        ("a\x07b", {"control characters"}),
        ("<|im_start|>user", {"template marks"}),
        ("### Human: hi", {"template marks"}),
        ("[INST] hi", {"template marks"}),
        ("I am {{name}}", {"placeholders"}),
        ("ask jo.doe+x@mail.example.org", {"e-mail addresses"}),
        ("call +49 30 1234 5678 now", {"phone numbers"}),
        *(
            (f"at {number}, please", {"phone numbers"})
            for number in ("06 12 34 56 78", "+7 905 123-45-67", "0170/1234567")
        ),
        ("on 01.02.2024 09:15, or 0.123456789", set()),
        ("4111 1111 1111 1111", {"card numbers"}),
        ("at 192.168.0.17.", {"IP addresses"}),
        ("4111 1111 1111 1112, 1 < 2 and 3 > 2, version 1.2.3, 978-3-16-148410-0, on 2023-04-12, Ça va, 3 + 4", set()),
    ],
)
def test_odd_things_are_found(text, names):
    assert set(find_oddities(text)) == names
