import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import (
    CALL_END,
    CALL_START,
    CONTROL_TOKENS,
    IM_END,
    IM_START,
    Message,
    Part,
    conversation_segments,
    declare_tools,
    escape,
    header_segments,
    render,
)
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import ChatmillTemplate
from chatmill.inference.model_loading import load_engine
from chatmill.inference.sampler import IncrementalDetokenizer, Sampling, Utf8StreamDecoder
from export_onnx import main as export
from support.scripted import ScriptedEngine
from support.tiny import byte_tokenizer, write_model

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(["<", "\\", "|", "é", "🙂", *CONTROL_TOKENS])).map("".join))
TEMPLATES = pytest.mark.parametrize("template", ["chatml", "markers"])


def say(text, *, end=True):
    """The ids that a model generates for a text; `[` and `]` enclose a call."""
    ids = [
        {ord("["): SPECIAL[CALL_START], ord("]"): SPECIAL[CALL_END]}.get(byte, byte) for byte in escape(text).encode()
    ]
    return ids + [SPECIAL[IM_END]] * end


def chat(*replies, template="chatml", context=1000, **options):
    """A session whose model gives these replies."""
    script = [token for reply in replies for token in reply]
    engine = ScriptedEngine(script, vocab_size=TOKENIZER.vocab_size, context=context)
    return ChatSession(engine, TOKENIZER, ChatmillTemplate(template), **options)


def ask(session, text):
    return "".join(session.ask(text))


def prompt_of(conversation, template="chatml"):
    """The ids of a conversation and the generation prompt, encoded at once."""
    return TOKENIZER.encode_segments(
        [*conversation_segments(conversation, template), *header_segments("assistant", template)]
    )[0]


@given(TEXT, st.data())
def test_streamed_text_is_the_text_wherever_its_bytes_are_cut(text, data):
    encoded, stream, shown = escape(text).encode(), Utf8StreamDecoder(), ""
    while encoded:
        size = data.draw(st.integers(1, len(encoded)))
        shown += stream.decode(encoded[:size])
        encoded = encoded[size:]
    assert shown + stream.decode(b"", final=True) == text


def test_reply_shows_text_alone_and_keeps_calls_and_outputs():
    reply = IncrementalDetokenizer(TOKENIZER)
    ids = TOKENIZER.encode_segments(
        conversation_segments(
            [Message("assistant", (Part("call", "1<|2"), Part("output", "3"), Part("text", "It is <|3.")))]
        )[3:]
    )[0]
    assert "".join(map(reply.push, ids)) + reply.finish() == "It is <|3.\n"
    assert reply.message.parts == (Part("call", "1<|2"), Part("output", "3"), Part("text", "It is <|3.\n"))


@TEMPLATES
def test_turns_are_read_as_training_reads_the_whole_conversation(template):
    space = " " if template == "markers" else ""
    session = chat(say(space + "Ho"), say(space + "Fine <|you|>?"), template=template, system="Be kind.")
    assert ask(session, "Hi") == "Ho"
    assert ask(session, "How <|im_end|> are you?") == "Fine <|you|>?"
    expected = TOKENIZER.encode_segments(conversation_segments(session.conversation, template))[0]
    assert session.engine.cache == expected[: session.engine.length]
    assert [message.role for message in session.conversation] == ["system", "user", "assistant", "user", "assistant"]


def test_calculator_answers_a_call_and_only_the_text_is_shown():
    session = chat(say("[12*3]It is 36."))
    assert ask(session, "What is 12 * 3?") == "It is 36."
    assert session.conversation[-1].parts == (Part("call", "12*3"), Part("output", "36"), Part("text", "It is 36."))


@given(TEXT.filter(str.strip))
def test_no_text_of_the_user_opens_a_turn(text):
    session = chat(say("Ho"))
    ask(session, text)
    assert session.engine.received_ids[0].count(SPECIAL[IM_START]) == 2
    assert render(session.conversation) == render(
        [Message.from_text("user", text), Message.from_text("assistant", "Ho")]
    )


@TEMPLATES
def test_oldest_turns_are_dropped_and_the_system_prompt_kept(template):
    session = chat(*[say("Yes.")] * 20, template=template, context=120, system="Be kind.", max_tokens=16)
    for number in range(20):
        ask(session, f"Question {number}?")
        assert session.engine.length < 120
    remaining = [session.conversation[0], *session.conversation[1 + session.num_dropped :]]
    assert TOKENIZER.decode(session.engine.cache).startswith(TOKENIZER.decode(prompt_of(remaining[:-1], template)))
    assert remaining[0].text == "Be kind."
    assert len(session.conversation) == 41 > len(remaining) >= 3


def test_a_question_longer_than_the_context_is_refused_and_nothing_changes():
    session = chat(say("Ho"), say("Fine"), context=100)
    ask(session, "Hi")
    before = session.conversation
    with pytest.raises(ValueError, match=r"the message takes \d+ tokens, but the model has room for 75: shorten"):
        ask(session, "x" * 100)
    assert session.conversation == before
    assert ask(session, "Hi") == "Fine"


def test_reply_answers_a_given_conversation_and_says_whether_it_stopped():
    conversation = [
        Message.from_text("user", "Hi"),
        Message.from_text("assistant", "Ho"),
        Message.from_text("user", "2+2?"),
    ]
    session = chat(say("[2+2]4"), say("It goes on", end=False))
    message, stopped = session.greedy_reply(conversation, 20)
    assert (message.text, stopped) == ("4", True)
    assert session.engine.received_ids[0] == prompt_of(conversation)
    message, stopped = session.greedy_reply(conversation, 6)
    assert (message.text, stopped) == ("It goe", False)
    assert session.conversation == []


def test_an_answer_ends_at_a_stop_text_and_the_chat_goes_on():
    session = chat(say("One. Two. Three.")[:7], say("Fine"), stop=[". Tw", "Three"])
    assert ask(session, "Count") == "One"
    assert session.conversation[-1] == Message.from_text("assistant", "One")
    assert ask(session, "And?") == "Fine"
    assert session.engine.cache == prompt_of(session.conversation[:-1]) + say("Fine")[:-1]


def test_logits_that_are_no_numbers_are_told_and_nothing_changes():
    session = chat(say("Ho"), say("Fine"))
    ask(session, "Hi")
    before, append = session.conversation, session.engine.append
    session.engine.append = lambda ids: append(ids) * (np.nan if len(ids) == 1 else 1)
    with pytest.raises(ValueError, match="the model's largest logit is nan at token 2 of the answer"):
        ask(session, "You?")
    assert session.conversation == before


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    export(write_model(folder / "model"), folder / "onnx", quantize=[])
    return folder


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=3)])
def test_engines_give_the_same_answers_turn_after_turn(model, sampling):
    answers = []
    for name in ("pytorch", "onnx", "onnx_hf"):
        engine = load_engine(model / ("model" if name == "pytorch" else "onnx"), name, device="cpu", threads=1)
        session = ChatSession(engine, TOKENIZER, sampling=sampling, max_tokens=24)
        answers.append([ask(session, text) for text in ("Hi", "What is 2 + 2?", "Bye" * 120, "So?")])
    assert answers[0] == answers[1] == answers[2]
    assert len(set(answers[0])) > 1


@TEMPLATES
def test_the_tools_of_a_model_are_declared_before_the_system_prompt(template):
    session = chat(say("Ho"), say("Hu"), template=template, tools=["calculator"])
    ask(session, "Hi")
    conversation = declare_tools([Message.from_text("user", "Hi")])
    assert session.prompt_ids == prompt_of(conversation, template)
    assert session.conversation[0].role == "user"
    session.system = "Be kind."
    ask(session, "Hi")
    assert TOKENIZER.decode(session.prompt_ids).count("Tools: calculator\nBe kind.") == 1


def test_after_clearing_the_model_reads_the_system_prompt_and_the_question_alone():
    session = chat(say("Yes."), say("No."), system="Be kind.")
    ask(session, "Really?")
    session.clear()
    ask(session, "Sure?")
    assert session.engine.cache == prompt_of(session.conversation[:-1]) + say("No.")[:-1]
