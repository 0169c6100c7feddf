"""A chat with a model: its prompts, its answers, and the cache across turns."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from chatmill.calculator import calculate
from chatmill.conversation import (
    CALL_END,
    CALL_START,
    OUTPUT_END,
    OUTPUT_START,
    Conversation,
    Message,
    Segment,
    declare_tools,
    output_segments,
    unescape,
)
from chatmill.engines.engine import Engine
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.inference.sampler import Generation, IncrementalDetokenizer, Sampler, Sampling, Tool
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

# Build the prompts of one model, and hold what its answers need: allowed ids, stop ids and the tool.

TOOL_TOKENS = (CALL_START, CALL_END, OUTPUT_START, OUTPUT_END)


class PromptBuilder:
    """Makes prompt ids that fit into the context. `allowed` (V,) is True for the ids that an answer may contain."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        stop_ids: Collection[int] = (),
        tools: Collection[str] = (),
    ) -> None:
        """`stop_ids` end an answer, as the template's end token does; `tools` are those that `declare` names."""
        special = tokenizer.special
        if engine.vocab_size < tokenizer.vocab_size:
            raise ValueError(
                f"the model gives logits for {engine.vocab_size} tokens, but the tokenizer has {tokenizer.vocab_size}: "
                "the tokenizer is another model's"
            )
        self.tokenizer, self.template, self.context = tokenizer, template, engine.context
        self.end_id = special.get(template.end_token)  # the id that ends an answer, or None
        ends = [*stop_ids, *([] if self.end_id is None else [self.end_id])]
        ids = [special[name] for name in TOOL_TOKENS if name in special] if template.escapes else []
        self.tool = Tool(ids[0], ids[1], self._calculate) if len(ids) == len(TOOL_TOKENS) else None
        call_end = {self.tool.end_id} if self.tool else set()  # no stop id: the tool runs, and the answer goes on
        self.stop_ids = frozenset(i for i in ends if i in range(tokenizer.vocab_size)) - call_end
        self.tools = tuple(tools) if self.tool else ()
        self.allowed = np.zeros(engine.vocab_size, bool)
        self.allowed[: tokenizer.vocab_size] = tokenizer.is_written
        self.allowed[[*self.stop_ids, *ids[:2]]] = True

    def declare(self, conversation: Conversation) -> Conversation:
        return declare_tools(conversation, self.tools)

    def max_prompt_tokens(self, max_tokens: int) -> int:
        """How many tokens a prompt may have, so that an answer fits after it."""
        return self.context - min(max_tokens, self.context // 4)

    def truncate(
        self, conversation: Conversation, max_tokens: int, *, follows: bool = False
    ) -> tuple[Conversation, list[int]]:
        """The conversation without the oldest turns that do not fit, and its ids. Raises ValueError if none fits."""
        room, ids = self.max_prompt_tokens(max_tokens), self.prompt_ids(conversation, follows=follows)
        if len(ids) <= room:
            return conversation, ids
        turns = [index for index, message in enumerate(conversation) if message.role == "user"]

        def from_turn(turn: int) -> tuple[Conversation, list[int]]:
            shorter = conversation[: turns[0]] + conversation[turn:]
            return shorter, self.prompt_ids(shorter, follows=follows)

        dropped = bisect_left(turns[:-1], True, key=lambda turn: len(from_turn(turn)[1]) <= room)
        remaining, ids = from_turn(turns[dropped])
        if len(ids) > room:
            raise ValueError(
                f"the message takes {len(ids)} tokens, but the model has room for {room}: "
                "shorten it, or lower max_tokens"
            )
        return remaining, ids

    def prompt_ids(self, conversation: Conversation, *, follows: bool = False) -> list[int]:
        """The ids up to the answer; a last message of the assistant is continued, unless another one `follows` it."""
        continues = not follows and bool(conversation) and conversation[-1].role == "assistant"
        return self.encode(self.template.prompt(conversation, continues=continues))

    def encode(self, segments: Iterable[Segment]) -> list[int]:
        return self.tokenizer.encode_segments(segments)[0]

    def _calculate(self, call: list[int]) -> list[int]:
        return self.encode(output_segments(calculate(unescape(self.tokenizer.decode(call)))))


# A chat with a model: it encodes the conversation, generates answers and reuses the cache across turns.

GREEDY = Sampling()


class AnswerStats(NamedTuple):
    """Numbers of tokens of an answer, and seconds from the question to its first and last token."""

    prompt_tokens: int
    cached_tokens: int  # tokens of the prompt that were in the cache
    tokens: int
    first_token: float
    seconds: float
    stopped: bool  # at a stop id or a stop text, so that the answer is complete

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens - 1) / rest if (rest := self.seconds - self.first_token) > 0 else 0.0


class ChatSession:
    """A conversation with one model. No other session may use the engine: its cache holds this conversation.

    `system`, `sampling`, `max_tokens` and `stop` (texts that end an answer) may be changed between answers.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        template: ChatTemplate = CHATML,
        stop_ids: Collection[int] = (),
        tools: Collection[str] = (),
        *,
        system: str = "",
        sampling: Sampling = GREEDY,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
    ) -> None:
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self.max_tokens, self.stop = max_tokens, tuple(stop)
        self._prompts = PromptBuilder(engine, tokenizer, template, stop_ids, tools)
        self.sampling, self._greedy = sampling, Sampler(self._prompts.allowed, GREEDY)
        self._engine_ids: list[int] = []  # ids given to the engine; its cache holds the first of them
        self._system = system
        self.answer_stats: AnswerStats | None = None  # of the latest answer
        self.clear()

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen. Setting it restarts the random numbers from the seed."""
        return self._sampler.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampler = Sampler(self._prompts.allowed, sampling)

    @property
    def system(self) -> str:
        """The system prompt, "" for none. Setting it keeps the conversation, which the model then reads again."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system = text
        self.set_conversation(self.conversation)

    @property
    def conversation(self) -> Conversation:
        return [*([Message.from_text("system", self._system)] if self._system else []), *self._turns]

    def clear(self) -> None:
        """Remove all messages except the system prompt."""
        self.set_conversation([])

    def set_conversation(self, conversation: Conversation) -> None:
        """Continue from a conversation that ends with an answer. A system prompt in it replaces the session's."""
        for message in conversation:
            if message.role == "system":
                self._system = message.text
        self._turns = [message for message in conversation if message.role != "system"]
        # what the model reads, with replies as they were generated; empty where it has yet to be encoded
        self._history_ids: list[int] = []
        self._exchange_starts: list[int] = []  # where in these ids each of the latest exchanges begins
        self.num_dropped = 0  # the oldest messages, which no longer fit into the context

    def ask(self, text: str) -> Generator[str, None, None]:
        """Yield the visible text of the answer as it is generated. Closing the generator ends the answer there.

        Raises ValueError where the question is empty, or alone is longer than the context; the conversation then stays
        as it was. A base model may be given "" as the first question: it then writes a text from its beginning.
        """
        if not text.strip() and (self._turns or self.template.is_chat):
            raise ValueError("the message is empty: enter some text")
        question = Message.from_text("user", text)
        before, num_dropped, ids = len(self._history_ids), self.num_dropped, []
        turn = self.template.next_turn(question)
        if self._history_ids and turn is not None:
            ids = self._history_ids + self._prompts.encode(turn)
        if not 0 < len(ids) <= self._prompts.max_prompt_tokens(self.max_tokens):
            conversation = self._prompts.declare([*self.conversation, question])
            remaining, ids = self._prompts.truncate(conversation, self.max_tokens)
            before = common_prefix_length(self._history_ids, ids) if turn is None else 0
            num_dropped = len(conversation) - len(remaining)
        reply = IncrementalDetokenizer(self.tokenizer, self.template, self.stop)
        try:
            yield from self._stream(ids, reply, self._sampler, self.max_tokens)
        except (GeneratorExit, KeyboardInterrupt):
            reply.finish()
            if reply.message.parts:
                self._add_exchange(question, reply, before, num_dropped)
            raise
        self._add_exchange(question, reply, before, num_dropped)

    def _stream(
        self, ids: list[int], reply: IncrementalDetokenizer, sampler: Sampler, max_tokens: int
    ) -> Iterator[str]:
        for token in self._generate(ids, sampler, max_tokens):
            if shown := reply.push(token):
                yield shown
            if reply.stopped:
                assert self.answer_stats, "_generate sets them"
                self.answer_stats = self.answer_stats._replace(stopped=True)
                break
        if shown := reply.finish():
            yield shown

    def _add_exchange(self, question: Message, reply: IncrementalDetokenizer, before: int, num_dropped: int) -> None:
        turns, starts = [*self._turns, question, reply.message], [*self._exchange_starts, before] if before else [0]
        end = self._prompts.end_id
        ended = self._engine_ids[:-1] if self._engine_ids[-1] in self._prompts.stop_ids else self._engine_ids
        ids = [] if reply.stopped else [*ended, *([] if end is None else [end])]
        # in one statement, so that Ctrl-C leaves ids and turns that match
        self._turns, self._history_ids, self._exchange_starts, self.num_dropped = turns, ids, starts, num_dropped

    def undo(self) -> str | None:
        """Remove the latest question and its answer, and return the question; None where there is none."""
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
        """Answer the latest question again. Raises ValueError where there is none."""
        if (question := self.undo()) is None:
            raise ValueError("there is no answer yet")
        return self.ask(question)

    def greedy_reply(self, conversation: Conversation, max_tokens: int) -> tuple[Message, bool]:
        """The greedy answer to a conversation that ends with the user's message, and whether it is complete.

        No tools are declared but those of the conversation. The session's own conversation is left as it is.
        """
        _, ids = self._prompts.truncate(conversation, max_tokens)
        reply = IncrementalDetokenizer(self.tokenizer, self.template)
        deque(self._stream(ids, reply, self._greedy, max_tokens), maxlen=0)
        return reply.message, self.answer_stats is not None and self.answer_stats.stopped

    def fits(self, conversation: Conversation, max_tokens: int) -> bool:
        return len(self._prompts.prompt_ids(conversation)) <= self._prompts.max_prompt_tokens(max_tokens)

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt of the latest answer."""
        return self._engine_ids[: self.answer_stats.prompt_tokens] if self.answer_stats else []

    @property
    def question_start(self) -> int:
        """Where in `prompt_ids` the latest question begins."""
        return self._exchange_starts[-1] if self._exchange_starts else 0

    @property
    def answer_ids(self) -> list[int]:
        """The ids of the latest answer, including outputs of the tool."""
        return self._engine_ids[self.answer_stats.prompt_tokens :] if self.answer_stats else []

    def _generate(self, ids: list[int], sampler: Sampler, max_tokens: int) -> Iterator[int]:
        """Yield the ids that follow a prompt; the engine reads only those that its cache does not hold."""
        started = perf_counter()
        cached = common_prefix_length(self._engine_ids[: self.engine.length], ids[:-1])
        self.engine.rewind(cached)
        self._engine_ids, first = list(ids), 0.0
        self.answer_stats = AnswerStats(len(ids), cached, 0, 0.0, 0.0, False)
        stop_ids = self._prompts.stop_ids
        generation = Generation(
            ids[cached:],
            remaining_context=self.engine.context - len(ids),
            sampler=sampler,
            stop_ids=stop_ids,
            max_tokens=max_tokens,
            tool=self._prompts.tool,
        )
        while not generation.done:
            for token in generation.step(self.engine.append(generation.pending)):
                seconds = perf_counter() - started
                first = first or seconds
                self._engine_ids.append(token)
                count = len(self._engine_ids) - len(ids)
                self.answer_stats = AnswerStats(len(ids), cached, count, first, seconds, token in stop_ids)
                yield token


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
