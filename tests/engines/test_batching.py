from itertools import zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_engine
from export_onnx import main as export
from support.tiny import CONFIG, byte_tokenizer, random_model, write_model

ROWS = 3
MODEL = random_model()
each_engine = pytest.mark.parametrize("name", ["pytorch", "onnx"])


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    export(write_model(folder / "model"), folder / "onnx", quantize=[])
    folders = {"pytorch": folder / "model", "onnx": folder / "onnx"}
    return {name: load_engine(folder, name, device="cpu", threads=1) for name, folder in folders.items()}


def some_ids(count, seed=0):
    return np.random.default_rng([count, seed]).integers(0, CONFIG.vocab_size, count).tolist()


@torch.inference_mode()
def expected(ids):
    return MODEL(torch.tensor([ids]))[0, -1].numpy()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 30)),
        st.tuples(st.just("leave"), st.integers(0, ROWS - 1)),
        st.tuples(st.just("rewind"), st.integers(0, ROWS - 1)),
        st.tuples(st.just("step"), st.permutations(range(ROWS)).flatmap(lambda p: st.just(p[: 1 + p[0]]))),
    ),
    max_size=12,
)


@each_engine
@settings(max_examples=30)
@given(actions=ACTIONS)
def test_each_chat_gets_the_logits_it_would_get_alone_whoever_joins_and_leaves(engines, name, actions):
    chats, texts = engines[name].chat_batch(ROWS), {}
    for action, number in actions:
        here = list(texts)
        if action == "join" and len(here) < ROWS:
            texts[chat := chats.join()] = some_ids(number)
            np.testing.assert_allclose(chat.append(texts[chat]), expected(texts[chat]), atol=1e-4)
        elif action == "step":
            given = [(here[i], some_ids(1, len(texts[here[i]]))[0]) for i in number if i < len(here)]
            logits = chats.step(given) if given else []
            for (chat, token), row in zip(given, logits, strict=True):
                texts[chat].append(token)
                np.testing.assert_allclose(row, expected(texts[chat]), atol=1e-4)
        elif action == "leave" and number < len(here):
            chats.leave(here[number])
            del texts[here[number]]
        elif action == "rewind" and number < len(here):
            del texts[here[number]][5:]
            here[number].rewind(len(texts[here[number]]))


@each_engine
def test_sessions_that_take_turns_say_what_one_alone_says(engines, name):
    questions, chats = ["Hi", "What is 2 + 2?", "Bye" * 20], engines[name].chat_batch(ROWS)
    sessions = [ChatSession(chats.join(), byte_tokenizer(), max_tokens=12) for _ in questions]
    streams = [session.ask(question) for session, question in zip(sessions, questions, strict=True)]
    turns = list(zip_longest(*streams, fillvalue=""))
    for question, texts in zip(questions, zip(*turns, strict=True), strict=True):
        alone = ChatSession(engines[name], byte_tokenizer(), max_tokens=12)
        assert "".join(alone.ask(question)) == "".join(texts)


@each_engine
def test_more_chats_than_there_is_room_for_and_tokens_that_do_not_fit_are_refused(engines, name):
    chats = engines[name].chat_batch(1)
    chat = chats.join()
    with pytest.raises(ValueError, match="all 1 rows are taken: let a chat leave first"):
        chats.join()
    with pytest.raises(ValueError, match="expected 0 to 319"):
        chats.step([(chat, 320)])
    chats.leave(chat)
    assert chats.join().length == 0
