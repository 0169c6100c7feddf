"""Short conversations, encoded by bytes and packed into rows."""

from chatmill.conversation import Message, Record, conversation_segments, record_segments
from chatmill.encoded.token_files import EncodedSplit
from chatmill.training.packing import PackedDataset, truncate_conversations
from support.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special
ROLES = ("user", "assistant")


def encode(talks, template="chatml"):
    """Encode conversations, each a list of texts of which the user's is first, or (system text, list).

    A text by itself is a document, and a Record is any.
    """
    segments = []
    for talk in talks:
        if isinstance(talk, str | Record):
            segments.append(record_segments(talk if isinstance(talk, Record) else Record("", "", talk), template))
            continue
        system, texts = talk if isinstance(talk, tuple) else ("", talk)
        turns = [Message.from_text(ROLES[i % 2], text) for i, text in enumerate(texts)]
        messages = [Message.from_text("system", system), *turns] if system else turns
        segments.append(conversation_segments(messages, template))
    return EncodedSplit(*TOKENIZER.encode_conversations(segments))


def pack(talks, row_length, template="chatml", chained=0.0):
    """The dataset of conversations."""
    split = encode(talks, template)
    spans = truncate_conversations(split, row_length, template, SPECIAL)
    return PackedDataset(split, spans, row_length, SPECIAL, chained)
