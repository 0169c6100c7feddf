from itertools import zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.engines.engine import ChatBatch
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
        st.tuples(st.just("rewind"), st.integers(0, ROWS - 1)),
        st.tuples(st.just("append"), st.integers(0, ROWS - 1)),
        st.tuples(st.just("step"), st.permutations(range(ROWS)).flatmap(lambda p: st.just(p[: 1 + p[0]]))),
    ),
    max_size=12,
)


@each_engine
@settings(max_examples=30)
@given(actions=ACTIONS)
def test_each_chat_gets_the_logits_it_would_get_alone_whatever_the_others_do(engines, name, actions):
    batch = ChatBatch(engines[name], ROWS)
    chats, texts = batch.chats, {chat: [] for chat in batch.chats}
    for action, number in actions:
        if action == "append":
            chat, ids = chats[number], some_ids(7 + len(texts[chats[number]]))
            texts[chat] += ids
            np.testing.assert_allclose(chat.append(ids), expected(texts[chat]), atol=1e-4)
        elif action == "step":
            given = [(chats[i], some_ids(1, len(texts[chats[i]]))[0]) for i in number]
            for (chat, token), row in zip(given, batch.step(given), strict=True):
                texts[chat].append(token)
                np.testing.assert_allclose(row, expected(texts[chat]), atol=1e-4)
        else:
            del texts[chats[number]][5:]
            chats[number].rewind(len(texts[chats[number]]))


@each_engine
def test_sessions_that_take_turns_say_what_one_alone_says(engines, name):
    questions, chats = ["Hi", "What is 2 + 2?", "Bye" * 20], ChatBatch(engines[name], ROWS).chats
    sessions = [ChatSession(chat, byte_tokenizer(), max_tokens=12) for chat in chats]
    streams = [session.ask(question) for session, question in zip(sessions, questions, strict=True)]
    turns = list(zip_longest(*streams, fillvalue=""))
    for question, texts in zip(questions, zip(*turns, strict=True), strict=True):
        alone = ChatSession(engines[name], byte_tokenizer(), max_tokens=12)
        assert "".join(alone.ask(question)) == "".join(texts)


@each_engine
def test_a_token_outside_the_vocabulary_is_refused(engines, name):
    batch = ChatBatch(engines[name], 1)
    with pytest.raises(ValueError, match="expected 0 to 319"):
        batch.step([(batch.chats[0], 320)])
