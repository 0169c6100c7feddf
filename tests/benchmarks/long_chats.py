"""How a chat holds: right answers, and recall of a name, after other talk.

    python tests/benchmarks/long_chats.py [MODEL] [CONVERSATIONS] [--questions N] [--tokens N …] [--threads N]

MODEL is a folder of the pipeline (default: data/export/onnx, or data/model), CONVERSATIONS a file that mix wrote
(default: data/chat/test.jsonl). Before each question stand complete exchanges of other conversations, of about so many
tokens, and all are read as one chat. `answers` are right answers to the questions of skills, in phrasings that occur in
training; `names` are answers that recall a name, which was told before the other talk. Shares with Wilson's interval.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "stages"))

from chatmill.conversation import Conversation, Message, conversation_segments, declare_tools, declared_tools  # noqa: E402
from chatmill.engines.engine import default_threads  # noqa: E402
from chatmill.evaluation.answering import is_correct  # noqa: E402
from chatmill.evaluation.held_out_set import TestSet, read_test_set  # noqa: E402
from chatmill.evaluation.intervals import wilson  # noqa: E402
from chatmill.inference.chat_session import ChatSession  # noqa: E402
from chatmill.inference.model_loading import load_model  # noqa: E402

MAX_TOKENS = 64  # of an answer; a chat leaves at least this room
TOKENS = (0, 100, 200, 300, 500, 700, 900)
NAMES = "Alba Bruno Celia Dario Edna Fabian Gerda Hector Ilse Jonas Kira Leon Mona Nils Olga Paul Rosa Silas Tilda Udo"
TELLINGS = ("My name is {}.", "I'm {}.", "Hi, I am {}.", "call me {}")
ASKINGS = ("What is my name?", "Do you remember my name?", "what's my name", "Can you tell me my name?")


def undeclared(conversation: Conversation) -> Conversation:
    """The conversation without its declaration of tools."""
    return conversation[bool(declared_tools(conversation)) :]


class Filler:
    """Exchanges of other conversations, which tell no names."""

    def __init__(self, test: TestSet, session: ChatSession, random: Random) -> None:
        self._session, self._random = session, random
        usable = [
            conversation
            for conversation in test.conversations
            if 0 < len(conversation) < 12 and not any("name" in message.text.lower() for message in conversation)
        ]
        self._conversations = {
            has_tools: [undeclared(one) for one in usable if bool(declared_tools(one)) == has_tools]
            for has_tools in (False, True)
        }

    def talk(self, tokens: int, *, has_tools: bool = True) -> Conversation:
        """Complete conversations of at least so many tokens, which have the calculator or not."""
        result: Conversation = []
        while self._length(result) < tokens:
            result += self._random.choice(self._conversations[has_tools])
        return result

    def _length(self, conversation: Conversation) -> int:
        return len(self._session.tokenizer.encode_segments(conversation_segments(conversation))[0])


def chats_with_questions(
    test: TestSet, filler: Filler, tokens: int, number: int
) -> Iterator[tuple[Conversation, dict]]:
    """Chats that end with a question of a skill, and how its answer is scored."""
    pairs = [
        (conversation, skill)
        for conversation, skill in zip(test.conversations, (one.skill for one in test.records), strict=True)
        if skill and skill["phrasing"] == "known" and "answers" in skill
    ]
    step = max(1, len(pairs) // number)
    for conversation, skill in pairs[::step][:number]:
        tools = declared_tools(conversation)
        chat = [*filler.talk(tokens, has_tools=bool(tools)), *undeclared(conversation)[:-1]]
        yield declare_tools(chat, tools), skill


def chats_with_names(
    session: ChatSession, filler: Filler, tokens: int, number: int, random: Random
) -> Iterator[tuple[Conversation, dict]]:
    """Chats in which a name is told first, which the model answers itself, and asked for at the end."""
    for _ in range(number):
        name = random.choice(NAMES.split())
        told = [Message.from_text("user", random.choice(TELLINGS).format(name))]
        told.append(session.greedy_reply(declare_tools(told), MAX_TOKENS)[0])
        question = Message.from_text("user", random.choice(ASKINGS))
        yield declare_tools([*told, *filler.talk(tokens), question]), {"contains": [name]}


def right(session: ChatSession, chats: Iterator[tuple[Conversation, dict]]) -> list[bool]:
    """Whether each answer is right."""
    return [is_correct(skill, session.greedy_reply(chat, MAX_TOKENS)[0].text) for chat, skill in chats]


def row(name: str, results: Sequence[bool]) -> str:
    """One share with its interval."""
    low, high = wilson(sum(results), len(results))
    return f"{name} {sum(results) / len(results):5.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exported = ROOT / "data/export/onnx"
    parser.add_argument("model", nargs="?", type=Path, default=exported if exported.exists() else ROOT / "data/model")
    parser.add_argument("conversations", nargs="?", type=Path, default=ROOT / "data/chat/test.jsonl")
    parser.add_argument("--questions", type=int, default=100, help="for each number of tokens")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    session = ChatSession(*load_model(options.model, device="cpu", threads=options.threads))
    test = read_test_set(options.conversations)
    for tokens in options.tokens:
        random = Random(tokens)
        filler = Filler(test, session, random)
        answers = right(session, chats_with_questions(test, filler, tokens, options.questions))
        names = right(session, chats_with_names(session, filler, tokens, options.questions, random))
        print(f"{tokens:5d} tokens  {row('answers', answers)}  {row('names', names)}", flush=True)


if __name__ == "__main__":
    main()
