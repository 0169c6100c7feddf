"""A chat with a model: conversations to ids, the tool, and the cache across turns."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from chatmill.calculator import calculate
from chatmill.conversation import CALL_END, CALL_START, END, Conversation, Message, unescape
from chatmill.inference.engine import Engine
from chatmill.inference.generation import Tool, generate
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.inference.text_stream import Reply
from chatmill.template import Segment, Template, header_segments, message_segments, output_segments, segments
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer

GREEDY = Sampling()


class ChatSession:
    """A conversation with one model. The engine is the session's own: its cache keeps what the turns have in common."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        template: Template = "chatml",
        *,
        system: str = "",
        sampling: Sampling = GREEDY,
        max_tokens: int = 256,
    ) -> None:
        self.engine, self.tokenizer, self.template, self.max_tokens = engine, tokenizer, template, max_tokens
        self._system = [Message.plain("system", system)] if system else []
        special = tokenizer.special
        allowed = np.zeros(engine.vocab_size, bool)
        allowed[: tokenizer.vocab_size] = tokenizer.is_text
        allowed[[special[END], special[CALL_START], special[CALL_END]]] = True
        self._sampler, self._greedy = Sampler(allowed, sampling), Sampler(allowed, GREEDY)
        self._end = special[END]
        self._calculator = Tool(special[CALL_START], special[CALL_END], self._calculate)
        self._read: list[int] = []  # ids the engine was given; its cache holds the first of them
        self.clear()

    def clear(self) -> None:
        """Forget the conversation, but for the system prompt."""
        self.conversation: Conversation = list(self._system)
        self._ids: list[int] = []  # the conversation: replies as they were generated

    def ask(self, text: str) -> Iterator[str]:
        """Yield the visible text of the answer as it is generated. Who stops listening ends the answer there.

        Raises ValueError where the question alone is longer than the context.
        """
        asked = [*self.conversation, Message.plain("user", text)]
        ids = self._ids + self._encode(self._turn(asked[-1])) if self._ids else self._prompt(asked)
        if len(ids) > self._room(self.max_tokens):
            asked, ids = self._fit(asked, self.max_tokens)
        reply = Reply(self.tokenizer, self.template)
        try:
            for token in self._generate(ids, self._sampler, self.max_tokens):
                if shown := reply.push(token):
                    yield shown
            if shown := reply.finish():
                yield shown
        finally:
            reply.finish()
            self.conversation = [*asked, reply.message]
            self._ids = self._read if self._read[-1] == self._end else [*self._read, self._end]

    def reply(self, conversation: Conversation, max_tokens: int) -> tuple[Message, bool]:
        """The likeliest answer to a conversation that ends with the user's message, and whether it stopped by itself.

        The session's own conversation is left as it is.
        """
        _, ids = self._fit(conversation, max_tokens)
        reply = Reply(self.tokenizer, self.template)
        for token in self._generate(ids, self._greedy, max_tokens):
            reply.push(token)
        reply.finish()
        return reply.message, self._read[-1] == self._end

    def _generate(self, ids: list[int], sampler: Sampler, max_tokens: int) -> Iterator[int]:
        """Yield the ids that follow; the engine reads only what its cache does not hold."""
        known = common_length(self._read[: self.engine.length], ids[:-1])
        self.engine.rewind(known)
        self._read = list(ids)
        settings = {"sampler": sampler, "stop_ids": {self._end}, "max_tokens": max_tokens, "tool": self._calculator}
        for token in generate(self.engine, ids[known:], **settings):
            self._read.append(token)
            yield token

    def _room(self, max_tokens: int) -> int:
        """How many tokens a prompt may have, so that an answer fits behind it."""
        return self.engine.context - min(max_tokens, self.engine.context // 4)

    def _fit(self, conversation: Conversation, max_tokens: int) -> tuple[Conversation, list[int]]:
        """The conversation, without its oldest turns where it is too long, and the ids that ask for the answer."""
        room = self._room(max_tokens)
        turns = [index for index, message in enumerate(conversation) if message.role == "user"]
        shorter = [conversation[: turns[0]] + conversation[turn:] for turn in turns]
        dropped = bisect_left(shorter, True, key=lambda kept: len(self._prompt(kept)) <= room)
        if dropped == len(turns):
            tokens = len(self._prompt(shorter[-1]))
            raise ValueError(f"the message takes {tokens} tokens, but the model has room for {room}: shorten it")
        return shorter[dropped], self._prompt(shorter[dropped])

    def _prompt(self, conversation: Conversation) -> list[int]:
        """A whole conversation and the header of the answer, as ids."""
        return self._encode([*segments(conversation, self.template), *header_segments("assistant", self.template)])

    def _turn(self, message: Message) -> list[Segment]:
        """What follows the end of an answer: its newline, the user's message, the header of the next answer."""
        newline = message_segments(Message("assistant", ()), self.template)[-1]
        return [newline, *message_segments(message, self.template), *header_segments("assistant", self.template)]

    def _encode(self, parts: Iterable[Segment]) -> list[int]:
        return self.tokenizer.encode_segments(parts)[0]

    def _calculate(self, call: list[int]) -> list[int]:
        """The ids of a call's output."""
        return self._encode(output_segments(calculate(unescape(self.tokenizer.decode(call)))))


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
