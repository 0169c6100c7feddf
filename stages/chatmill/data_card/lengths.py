"""The lengths of records in tokens, for any tokenizer."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from chatmill.conversation.chatml import Record
from chatmill.conversation.template import Segment, TemplateName, record_segments

Count = Callable[[Sequence[Record]], Sequence[int]]


class Encoder(Protocol):
    """What chatmill.tokenizer.encoding.chat_tokenizer.ChatTokenizer does."""

    def encode_conversations(self, conversations: Sequence[list[Segment]]) -> Any:
        """The ids of conversations, whose `offsets` say where each begins."""


def token_counter(tokenizer: Encoder, template: TemplateName = "chatml") -> Count:
    """The function that counts the tokens of records."""

    def count(records: Sequence[Record]) -> list[int]:
        encoded = tokenizer.encode_conversations([record_segments(record, template) for record in records])
        return [int(end - start) for start, end in pairwise(encoded.offsets)]

    return count
