"""Build the prompts of one model, and hold what its answers need: allowed ids, stop ids and the tool."""

from bisect import bisect_left
from collections.abc import Collection, Iterable

import numpy as np

from chatmill.conversation.chatml import (
    CALL_END,
    CALL_START,
    OUTPUT_END,
    OUTPUT_START,
    Conversation,
    declare_tools,
    unescape,
)
from chatmill.conversation.template import Segment, output_segments
from chatmill.engines.engine import Engine
from chatmill.inference.chat_template import ChatTemplate
from chatmill.inference.generation import Tool
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tools.calculator import calculate

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
        """`stop_ids` end an answer, as the template's end token does; `tools` are those that `declare` names.

        Raises ValueError where the model has fewer logits than the tokenizer has tokens.
        """
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
        call_end = {self.tool.end_id} if self.tool else set()  # which ends an answer where nothing runs the tool
        self.stop_ids = frozenset(i for i in ends if i in range(tokenizer.vocab_size)) - call_end
        self.tools = tuple(tools) if self.tool else ()
        self.allowed = np.zeros(engine.vocab_size, bool)
        self.allowed[: tokenizer.vocab_size] = tokenizer.is_text
        self.allowed[[*self.stop_ids, *ids[:2]]] = True

    def declare(self, conversation: Conversation) -> Conversation:
        """The conversation with the model's tools declared."""
        return declare_tools(conversation, self.tools)

    def max_prompt_tokens(self, max_tokens: int) -> int:
        """How many tokens a prompt may have, so that an answer fits after it."""
        return self.context - min(max_tokens, self.context // 4)

    def truncate(self, conversation: Conversation, max_tokens: int) -> tuple[Conversation, list[int]]:
        """The conversation, without its oldest turns where it is too long, and its prompt ids.

        Raises ValueError where its last turn alone is too long.
        """
        room, ids = self.max_prompt_tokens(max_tokens), self.prompt_ids(conversation)
        if len(ids) <= room:
            return conversation, ids
        turns = [index for index, message in enumerate(conversation) if message.role == "user"]

        def shorter(turn: int) -> Conversation:
            return conversation[: turns[0]] + conversation[turn:]

        dropped = bisect_left(turns, True, key=lambda turn: len(self.prompt_ids(shorter(turn))) <= room)
        if dropped == len(turns):
            tokens = len(self.prompt_ids(shorter(turns[-1])))
            raise ValueError(
                f"the message takes {tokens} tokens, but the model has room for {room}: shorten it, or lower max_tokens"
            )
        remaining = shorter(turns[dropped])
        return remaining, self.prompt_ids(remaining)

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """The ids of a conversation and the generation prompt; a last message of the assistant is continued."""
        continues = bool(conversation) and conversation[-1].role == "assistant"
        return self.encode((self.template.continue_final_message if continues else self.template.prompt)(conversation))

    def encode(self, segments: Iterable[Segment]) -> list[int]:
        """The ids of text and control tokens."""
        return self.tokenizer.encode_segments(segments)[0]

    def _calculate(self, call: list[int]) -> list[int]:
        """The ids of a call's output."""
        return self.encode(output_segments(calculate(unescape(self.tokenizer.decode(call)))))
