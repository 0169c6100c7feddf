"""A chat with a model: conversations to ids, the tool, and the cache across turns."""

from collections.abc import Collection, Generator, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from chatmill.conversation.chatml import Conversation, Message
from chatmill.engines.engine import Engine
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.inference.generation import generate
from chatmill.inference.interpreter import Interpreter
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.inference.text_stream import Reply
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

GREEDY = Sampling()


class Answer(NamedTuple):
    """What an answer took: numbers of tokens, and seconds from the question to its first and last token."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, that the cache held already
    tokens: int
    first_token: float
    seconds: float
    stopped: bool  # by itself, or at a stop text: it is whole

    @property
    def tokens_per_second(self) -> float:
        """The rate after the first token."""
        return (self.tokens - 1) / rest if (rest := self.seconds - self.first_token) > 0 else 0.0


class ChatSession:
    """A conversation with one model. The engine is the session's own: its cache keeps what the turns have in common.

    `system`, `sampling`, `max_tokens` and `stop` (texts that end an answer) may be changed between answers.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        template: ChatTemplate = CHATML,
        stop_ids: Collection[int] = (),
        *,
        system: str = "",
        sampling: Sampling = GREEDY,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
    ) -> None:
        """`stop_ids` end an answer beside the template's own. Raises ValueError where logits lack ids of the text."""
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self.max_tokens, self.stop = max_tokens, tuple(stop)
        self._interpreter = Interpreter(engine, tokenizer, template, stop_ids)
        self.sampling, self._greedy = sampling, Sampler(self._interpreter.allowed, GREEDY)
        self._read: list[int] = []  # ids the engine was given; its cache holds the first of them
        self._system = system
        self.answer: Answer | None = None  # what the latest one took
        self.clear()

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen. Setting it starts the sequence of its seed anew."""
        return self._sampler.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampler = Sampler(self._interpreter.allowed, sampling)

    @property
    def system(self) -> str:
        """The system prompt, "" for none. Setting it keeps the conversation, which is then read anew."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system = text
        self.load(self.conversation)

    @property
    def conversation(self) -> Conversation:
        """All that was said, after the system prompt."""
        return [*([Message.plain("system", self._system)] if self._system else []), *self._turns]

    def clear(self) -> None:
        """Forget the conversation, but for the system prompt."""
        self.load([])

    def load(self, conversation: Conversation) -> None:
        """Go on from a conversation that ends with an answer. A system prompt in it replaces the session's."""
        for message in conversation:
            if message.role == "system":
                self._system = message.text
        self._turns = [message for message in conversation if message.role != "system"]
        self._ids: list[int] = []  # of what the model sees: replies as they were generated; empty: to be encoded
        self._marks: list[int] = []  # how many of them there were before each of the latest exchanges
        self.forgotten = 0  # messages that no longer fit, the oldest

    def ask(self, text: str) -> Generator[str, None, None]:
        """Yield the visible text of the answer as it is generated. Who stops listening ends the answer there.

        Raises ValueError where there is nothing to answer, or the question alone is longer than the context; the
        conversation then is what it was. A model that continues text begins one of its own from "".
        """
        if not text.strip() and (self._turns or self.template.asks):
            raise ValueError("the message is empty: say something")
        asked = Message.plain("user", text)
        before, forgotten, ids = len(self._ids), self.forgotten, []
        if self._ids:
            ids = self._ids + self._interpreter.encode(self.template.turn(asked))
        if not 0 < len(ids) <= self._interpreter.room(self.max_tokens):
            conversation = [*self.conversation, asked]
            kept, ids = self._interpreter.fit(conversation, self.max_tokens)
            before, forgotten = 0, len(conversation) - len(kept)
        reply = Reply(self.tokenizer, self.template, self.stop)
        try:
            yield from self._say(ids, reply)
        except (GeneratorExit, KeyboardInterrupt):
            reply.finish()
            if reply.message.parts:
                self._keep(asked, reply, before, forgotten)
            raise
        self._keep(asked, reply, before, forgotten)

    def _say(self, ids: list[int], reply: Reply) -> Iterator[str]:
        """Yield the visible text of a reply while it grows."""
        for token in self._generate(ids, self._sampler, self.max_tokens):
            if shown := reply.push(token):
                yield shown
            if reply.stopped:
                assert self.answer, "generating sets what the answer took"
                self.answer = self.answer._replace(stopped=True)
                break
        if shown := reply.finish():
            yield shown

    def _keep(self, asked: Message, reply: Reply, before: int, forgotten: int) -> None:
        """Add an exchange to the conversation, of which the model had seen `before` ids."""
        turns, marks = [*self._turns, asked, reply.message], [*self._marks, before] if before else [0]
        end = self._interpreter.end
        ended = self._read[:-1] if self._read[-1] in self._interpreter.stop_ids else self._read
        ids = [] if reply.stopped else [*ended, *([] if end is None else [end])]
        # at once, so that who breaks off here leaves ids and turns that belong together
        self._turns, self._ids, self._marks, self.forgotten = turns, ids, marks, forgotten

    def undo(self) -> str | None:
        """Forget the latest question, which is returned, and its answer; None where there is none."""
        if len(self._turns) < 2:
            return None
        *self._turns, asked, _ = self._turns
        self.answer = None
        self._ids = self._ids[: self._marks.pop()] if self._ids and self._marks else []
        self.forgotten = self.forgotten if self._ids else 0
        return asked.text

    def regenerate(self) -> Generator[str, None, None]:
        """Answer the latest question once more. Raises ValueError where there is none."""
        if (question := self.undo()) is None:
            raise ValueError("there is no answer yet")
        return self.ask(question)

    def reply(self, conversation: Conversation, max_tokens: int) -> tuple[Message, bool]:
        """The likeliest answer to a conversation that ends with the user's message, and whether it stopped by itself.

        The session's own conversation is left as it is.
        """
        _, ids = self._interpreter.fit(conversation, max_tokens)
        reply = Reply(self.tokenizer, self.template)
        for token in self._generate(ids, self._greedy, max_tokens):
            reply.push(token)
            if reply.stopped:
                break
        reply.finish()
        return reply.message, reply.stopped or self._read[-1] in self._interpreter.stop_ids

    @property
    def prompt_ids(self) -> list[int]:
        """The ids that the latest answer was an answer to."""
        return self._read[: self.answer.prompt_tokens] if self.answer else []

    @property
    def question_start(self) -> int:
        """Where in `prompt_ids` the latest question begins, after what was said before it."""
        return self._marks[-1] if self._marks else 0

    @property
    def answer_ids(self) -> list[int]:
        """The ids of the latest answer, those that the tool put in among them."""
        return self._read[self.answer.prompt_tokens :] if self.answer else []

    def _generate(self, ids: list[int], sampler: Sampler, max_tokens: int) -> Iterator[int]:
        """Yield the ids that follow; the engine reads only what its cache does not hold."""
        started = perf_counter()
        known = common_length(self._read[: self.engine.length], ids[:-1])
        self.engine.rewind(known)
        self._read, first = list(ids), 0.0
        self.answer = Answer(len(ids), known, 0, 0.0, 0.0, False)
        stop_ids, tool = self._interpreter.stop_ids, self._interpreter.tool
        for token in generate(
            self.engine, ids[known:], sampler=sampler, stop_ids=stop_ids, max_tokens=max_tokens, tool=tool
        ):
            seconds = perf_counter() - started
            first = first or seconds
            self._read.append(token)
            stopped = token in stop_ids
            self.answer = Answer(len(ids), known, len(self._read) - len(ids), first, seconds, stopped)
            yield token


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
