"""Turn conversations into token ids and their loss mask."""

from pathlib import Path

from chatmill.conversation.template import Template
from chatmill.encoded.encoding import encode
from chatmill.encoded.token_files import SPLITS, Counts, Meta, text_bytes, write_meta, write_split
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.files import read_folder


@stage
def main(train: Path, validation: Path, tokenizer: Path, tokens: Output, *, template: Template) -> None:
    """Write the ids and the loss of every conversation's tokens, and how much text they hold."""
    vocabulary = read_folder(tokenizer)
    chat_tokenizer, num_bytes = ChatTokenizer(vocabulary), text_bytes(vocabulary)
    tokens.mkdir()
    counts = {
        split: write_split(tokens, split, encode(file, chat_tokenizer, template), num_bytes)
        for split, file in zip(SPLITS, (train, validation), strict=True)
    }
    if not counts["train"].conversations:
        raise ValueError(f"{train}: no conversations")
    meta = Meta(
        fingerprint=vocabulary.fingerprint,
        template=template,
        vocab_size=len(vocabulary.tokens),
        **{name: {split: getattr(count, name) for split, count in counts.items()} for name in Counts._fields},
    )
    write_meta(tokens, meta)
