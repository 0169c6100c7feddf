"""Many chats at once: none is lost or mixed up, and each gets the answers that it would get alone.

For another model, and a longer time:

    CHATMILL_LOAD_MODEL=data/export/onnx CHATMILL_LOAD_SECONDS=60 pytest -n0 -s -m slow tests/app/server/test_load.py
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import openai
import psutil
import pytest

from chatmill.conversation import Message
from chatmill.inference.chat_session import ChatSession, PromptBuilder
from chatmill.inference.model_loading import load_model
from support.raw_http import CHAT, Connection, ask, request
from support.serving import process, serving

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("CHATMILL_LOAD_SECONDS", "6"))
CHATS, TURNS, TOKENS = 64, 3, 24
VARIETY = 4  # different conversations of each chat, which are repeated in turn
GROWTH = 8 << 20  # bytes by which the server may grow after a third of the time
TRADES = ("baker", "sailor", "gardener", "doctor", "teacher", "smith", "farmer", "pilot", "painter", "tailor", "hunter")
QUESTIONS = (
    "Hello, who are you?",
    "What is {a} times {b}?",
    "My name is {trade}. What is my name?",
    "What does a {trade} do?",
    "Which is larger, {a} or {b}?",
    "Thank you! And what is {b} minus {a}?",
)


class Said(NamedTuple):
    """An answer, with its conversation and prompt."""

    conversation: tuple[Message, ...]
    prompt_ids: list[int]
    text: str
    ids: list[int]


@pytest.fixture(scope="module")
def model(request):
    """The folder of a model: that of the tiny pipeline, or of CHATMILL_LOAD_MODEL."""
    if named := os.environ.get("CHATMILL_LOAD_MODEL"):
        return Path(named).resolve()
    return request.getfixturevalue("project").folder / "data/export/onnx"


def questions(chat: int, number: int) -> Iterator[str]:
    """Yield the questions of one conversation of a chat."""
    for turn in range(TURNS):
        trade, a, b = TRADES[(chat + turn) % len(TRADES)], 2 + chat, 3 + 7 * number + turn
        yield QUESTIONS[(chat + number + turn) % len(QUESTIONS)].format(trade=trade, a=a, b=b)


def talk(port: int, chat: int, number: int) -> Iterator[Said]:
    """Hold a conversation of several turns, every other one streamed; yield the answers."""
    conversation = [Message.from_text("system", f"You are number {chat}, a {TRADES[chat % len(TRADES)]}.")]
    with Connection(port) as line:
        for turn, question in enumerate(questions(chat, number)):
            conversation.append(Message.from_text("user", question))
            yield (said := answer(line, port, conversation, stream=turn % 2 == chat % 2))
            conversation.append(Message.from_text("assistant", said.text))


def answer(line: Connection, port: int, conversation: list[Message], *, stream: bool) -> Said:
    """The server's answer to a conversation."""
    messages = [{"role": message.role, "content": message.text} for message in conversation]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True, "stream": stream}
    line.send(request(port, "POST", CHAT, body=body))
    reply = line.read_response()
    assert reply is not None and reply.status == 200, reply
    if not stream:
        choice = reply.json["choices"][0]
        return Said(
            tuple(conversation), reply.json["prompt_token_ids"], choice["message"]["content"], choice["token_ids"]
        )
    choices = [event["choices"][0] for event in reply.events]
    assert choices[-1]["finish_reason"]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    ids = [i for choice in choices for i in choice.get("token_ids", ())]
    return Said(tuple(conversation), reply.events[0]["prompt_token_ids"], text, ids)


def talk_until(end: float, port: int, chat: int) -> list[Said]:
    """The answers of a chat's complete conversations, at least one, until a time."""
    found: list[Said] = []
    for number in count():
        found += talk(port, chat, number % VARIETY)
        if monotonic() > end:
            return found


class Alone:
    """The same model, with one chat at a time."""

    def __init__(self, model: Path) -> None:
        self._loaded = load_model(model, "cpu", 1)
        self._session = ChatSession(*self._loaded)
        self.prompt_builder = PromptBuilder(*self._loaded)
        self.answer = cache(self._answer)

    def prompt_ids(self, conversation: tuple[Message, ...]) -> list[int]:
        """The prompt of a conversation, as the server declares the model's tools in it."""
        return self.prompt_builder.prompt_ids(self.prompt_builder.declare(list(conversation)))

    def _answer(self, conversation: tuple[Message, ...]) -> tuple[str, list[int]]:
        message, _ = self._session.greedy_reply(self.prompt_builder.declare(list(conversation)), TOKENS)
        return message.text, self._session.answer_ids

    def differences(self, said: Said) -> str:
        """The first id that differs from the answer alone, and the margin of the logits; "" if there is none."""
        _, expected = self.answer(said.conversation)
        if said.ids == expected:
            return ""
        place = next(i for i, pair in enumerate(zip(said.ids, expected, strict=False)) if pair[0] != pair[1])
        self._loaded.engine.rewind(0)
        logits = self._loaded.engine.append(said.prompt_ids + expected[:place])
        margin = logits[expected[place]] - logits[said.ids[place]]
        return f"token {place} of the answer to {said.conversation}: {margin:.2e} between {said.ids} and {expected}"


def test_sixty_four_chats_at_once_get_the_answers_that_each_would_get_alone(model):
    with process("--model", model, "--device", "cpu", "--queue", CHATS) as (address, started):
        port, server = int(address.rpartition(":")[2]), psutil.Process(started.pid)
        for _ in range(2):  # so long that the tokenizer loads its faster encoder before memory is measured
            assert ask(port, "POST", "/tokenize", body={"prompt": "many words " * 95_000}).status == 200
        begin = monotonic()
        with ThreadPoolExecutor(CHATS) as pool:
            third = pool.map(partial(talk_until, begin + SECONDS / 3, port), range(CHATS))
            found = [said for chat in third for said in chat]
            memory = server.memory_info().rss
            rest = pool.map(partial(talk_until, begin + SECONDS, port), range(CHATS))
            found += [said for chat in rest for said in chat]
        seconds, growth = monotonic() - begin, server.memory_info().rss - memory
    alone = Alone(model)
    print(f"\n{len(found):,} answers, {sum(len(said.ids) for said in found):,} tokens in {seconds:.0f} s; ", end="")
    print(f"{memory >> 20} MB, {growth / (1 << 20):+.1f} MB in the last two thirds")
    assert {len(said.conversation) for said in found} == {2 * turn + 2 for turn in range(TURNS)}
    assert all(said.prompt_ids == alone.prompt_ids(said.conversation) for said in found)
    assert [difference for said in found if (difference := alone.differences(said))] == []
    assert all(said.text == alone.answer(said.conversation)[0] for said in found)
    assert growth < GROWTH


def test_who_finds_the_queue_full_is_told_when_to_come_again_and_then_gets_through(model):
    with serving("--model", model, "--device", "cpu", "--parallel", 1, "--queue", 1) as address:
        port = int(address.rpartition(":")[2])
        long = {"prompt": "Once upon a time, " * 5, "max_tokens": 200, "stop": None}
        with ThreadPoolExecutor(24) as pool:
            replies = list(pool.map(lambda _: ask(port, "POST", "/v1/completions", body=long), range(24)))
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=30)
            texts = list(pool.map(lambda _: client.completions.create(model="", **long).choices[0].text, range(6)))
    assert {reply.status for reply in replies} == {200, 429}
    for reply in (reply for reply in replies if reply.status == 429):
        assert (reply.error["code"], reply.headers["retry-after"]) == ("queue_full", "2")
    assert set(texts) == {reply.json["choices"][0]["text"] for reply in replies if reply.status == 200}
