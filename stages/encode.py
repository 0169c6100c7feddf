"""Turn conversations into token ids and their loss mask."""

from pathlib import Path

from chatmill.conversation.chatml import read_records
from chatmill.conversation.template import TemplateName
from chatmill.encoded.file_encoding import encode_file, trained_tools
from chatmill.encoded.token_files import (
    SPLITS,
    Meta,
    SplitCounts,
    token_byte_lengths,
    write_meta,
    write_sources,
    write_split,
)
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder


@stage
def main(train: Path, validation: Path, tokenizer: Path, tokens: Output, *, template: TemplateName) -> None:
    """Write the token ids, loss kinds and source of all conversations, and their sizes."""
    files = dict(zip(SPLITS, (train, validation), strict=True))
    vocabulary = read_folder(tokenizer)
    chat_tokenizer, num_bytes = ChatTokenizer(vocabulary), token_byte_lengths(vocabulary)
    tokens.mkdir()
    counts = {
        split: write_split(tokens, split, encode_file(file, chat_tokenizer, template), num_bytes)
        for split, file in files.items()
    }
    if not counts["train"].conversations:
        raise ValueError(f"{train}: no conversations")
    meta = Meta(
        fingerprint=vocabulary.fingerprint,
        template=template,
        vocab_size=len(vocabulary.tokens),
        tools=trained_tools(train),
        sources=write_sources(
            tokens, {split: (record.source for record in read_records(file)) for split, file in files.items()}
        ),
        **{name: {split: getattr(count, name) for split, count in counts.items()} for name in SplitCounts._fields},
    )
    write_meta(tokens, meta)
