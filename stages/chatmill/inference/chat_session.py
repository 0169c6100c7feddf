"""A chat with a model: conversations to ids, the tool, and the cache across turns."""

from collections.abc import Collection, Generator, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from chatmill.conversation.chatml import Conversation, Message
from chatmill.engines.engine import Engine
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.inference.detokenizer import IncrementalDetokenizer
from chatmill.inference.generation import generate
from chatmill.inference.prompt_builder import PromptBuilder
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

GREEDY = Sampling()


class AnswerStats(NamedTuple):
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
        self._prompts = PromptBuilder(engine, tokenizer, template, stop_ids)
        self.sampling, self._greedy = sampling, Sampler(self._prompts.allowed, GREEDY)
        self._engine_ids: list[int] = []  # ids the engine was given; its cache holds the first of them
        self._system = system
        self.answer_stats: AnswerStats | None = None  # what the latest one took
        self.clear()

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen. Setting it starts the sequence of its seed anew."""
        return self._sampler.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampler = Sampler(self._prompts.allowed, sampling)

    @property
    def system(self) -> str:
        """The system prompt, "" for none. Setting it keeps the conversation, which is then read anew."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system = text
        self.set_conversation(self.conversation)

    @property
    def conversation(self) -> Conversation:
        """All that was said, after the system prompt."""
        return [*([Message.from_text("system", self._system)] if self._system else []), *self._turns]

    def clear(self) -> None:
        """Forget the conversation, but for the system prompt."""
        self.set_conversation([])

    def set_conversation(self, conversation: Conversation) -> None:
        """Go on from a conversation that ends with an answer. A system prompt in it replaces the session's."""
        for message in conversation:
            if message.role == "system":
                self._system = message.text
        self._turns = [message for message in conversation if message.role != "system"]
        self._history_ids: list[
            int
        ] = []  # of what the model sees: replies as they were generated; empty: to be encoded
        self._exchange_starts: list[int] = []  # how many of them there were before each of the latest exchanges
        self.num_dropped = 0  # messages that no longer fit, the oldest

    def ask(self, text: str) -> Generator[str, None, None]:
        """Yield the visible text of the answer as it is generated. Who stops listening ends the answer there.

        Raises ValueError where there is nothing to answer, or the question alone is longer than the context; the
        conversation then is what it was. A model that continues text begins one of its own from "".
        """
        if not text.strip() and (self._turns or self.template.is_chat):
            raise ValueError("the message is empty: say something")
        question = Message.from_text("user", text)
        before, forgotten, ids = len(self._history_ids), self.num_dropped, []
        if self._history_ids:
            ids = self._history_ids + self._prompts.encode(self.template.next_turn(question))
        if not 0 < len(ids) <= self._prompts.max_prompt_tokens(self.max_tokens):
            conversation = [*self.conversation, question]
            remaining, ids = self._prompts.truncate(conversation, self.max_tokens)
            before, forgotten = 0, len(conversation) - len(remaining)
        reply = IncrementalDetokenizer(self.tokenizer, self.template, self.stop)
        try:
            yield from self._stream(ids, reply)
        except (GeneratorExit, KeyboardInterrupt):
            reply.finish()
            if reply.message.parts:
                self._add_exchange(question, reply, before, forgotten)
            raise
        self._add_exchange(question, reply, before, forgotten)

    def _stream(self, ids: list[int], reply: IncrementalDetokenizer) -> Iterator[str]:
        """Yield the visible text of a reply while it grows."""
        for token in self._generate(ids, self._sampler, self.max_tokens):
            if shown := reply.push(token):
                yield shown
            if reply.stopped:
                assert self.answer_stats, "generating sets what the answer took"
                self.answer_stats = self.answer_stats._replace(stopped=True)
                break
        if shown := reply.finish():
            yield shown

    def _add_exchange(self, question: Message, reply: IncrementalDetokenizer, before: int, forgotten: int) -> None:
        """Add an exchange to the conversation, of which the model had seen `before` ids."""
        turns, marks = [*self._turns, question, reply.message], [*self._exchange_starts, before] if before else [0]
        end = self._prompts.end_id
        ended = self._engine_ids[:-1] if self._engine_ids[-1] in self._prompts.stop_ids else self._engine_ids
        ids = [] if reply.stopped else [*ended, *([] if end is None else [end])]
        # at once, so that who breaks off here leaves ids and turns that belong together
        self._turns, self._history_ids, self._exchange_starts, self.num_dropped = turns, ids, marks, forgotten

    def undo(self) -> str | None:
        """Forget the latest question, which is returned, and its answer; None where there is none."""
        if len(self._turns) < 2:
            return None
        *self._turns, question, _ = self._turns
        self.answer_stats = None
        self._history_ids = (
            self._history_ids[: self._exchange_starts.pop()] if self._history_ids and self._exchange_starts else []
        )
        self.num_dropped = self.num_dropped if self._history_ids else 0
        return question.text

    def regenerate(self) -> Generator[str, None, None]:
        """Answer the latest question once more. Raises ValueError where there is none."""
        if (question := self.undo()) is None:
            raise ValueError("there is no answer yet")
        return self.ask(question)

    def greedy_reply(self, conversation: Conversation, max_tokens: int) -> tuple[Message, bool]:
        """The likeliest answer to a conversation that ends with the user's message, and whether it stopped by itself.

        The session's own conversation is left as it is.
        """
        _, ids = self._prompts.truncate(conversation, max_tokens)
        reply = IncrementalDetokenizer(self.tokenizer, self.template)
        for token in self._generate(ids, self._greedy, max_tokens):
            reply.push(token)
            if reply.stopped:
                break
        reply.finish()
        return reply.message, reply.stopped or self._engine_ids[-1] in self._prompts.stop_ids

    @property
    def prompt_ids(self) -> list[int]:
        """The ids that the latest answer was an answer to."""
        return self._engine_ids[: self.answer_stats.prompt_tokens] if self.answer_stats else []

    @property
    def question_start(self) -> int:
        """Where in `prompt_ids` the latest question begins, after what was said before it."""
        return self._exchange_starts[-1] if self._exchange_starts else 0

    @property
    def answer_ids(self) -> list[int]:
        """The ids of the latest answer, those that the tool put in among them."""
        return self._engine_ids[self.answer_stats.prompt_tokens :] if self.answer_stats else []

    def _generate(self, ids: list[int], sampler: Sampler, max_tokens: int) -> Iterator[int]:
        """Yield the ids that follow; the engine reads only what its cache does not hold."""
        started = perf_counter()
        cached = common_prefix_length(self._engine_ids[: self.engine.length], ids[:-1])
        self.engine.rewind(cached)
        self._engine_ids, first = list(ids), 0.0
        self.answer_stats = AnswerStats(len(ids), cached, 0, 0.0, 0.0, False)
        stop_ids, tool = self._prompts.stop_ids, self._prompts.tool
        for token in generate(
            self.engine, ids[cached:], sampler=sampler, stop_ids=stop_ids, max_tokens=max_tokens, tool=tool
        ):
            seconds = perf_counter() - started
            first = first or seconds
            self._engine_ids.append(token)
            stopped = token in stop_ids
            self.answer_stats = AnswerStats(len(ids), cached, len(self._engine_ids) - len(ids), first, seconds, stopped)
            yield token


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
