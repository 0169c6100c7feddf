"""Turn conversations into token ids and their loss mask."""

from functools import partial
from pathlib import Path

from chatmill.conversation import CALCULATOR, TemplateName
from chatmill.encoded.file_encoding import encode_shard, encode_shards
from chatmill.encoded.token_files import SPLITS, Meta, sort_sources, write_meta, write_split
from chatmill.pipeline.progress import log
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder
from chatmill.workers import worker_pool

LARGE_BYTES = 32_000_000  # of conversations, of which a process more saves more than its start takes


@stage
def main(train: Path, validation: Path, tokenizer: Path, tokens: Output, *, template: TemplateName) -> None:
    """Write the token ids, loss kinds and source of all conversations, and their sizes."""
    files = dict(zip(SPLITS, (train, validation), strict=True))
    vocabulary, numbers = read_folder(tokenizer), dict[str, int]()
    encode = partial(encode_shard, folder=tokenizer, fingerprint=vocabulary.fingerprint, template=template)

    # Encode: shards of a large file by several processes, written in their order.
    tokens.mkdir()
    with worker_pool(train.stat().st_size // LARGE_BYTES) as ordered_map:
        counts = {
            split: write_split(tokens, split, encode_shards(file, encode, ordered_map), len(vocabulary.tokens), numbers)
            for split, file in files.items()
        }
    for split, count in counts.items():
        if count.lossy:
            log("encode", f"{count.lossy:,} conversations of {split} are read without characters that have no token")
    if not counts["train"].conversations:
        raise ValueError(f"{train}: no conversations")

    # Describe, once the sources of both splits are known.
    meta = Meta(
        fingerprint=vocabulary.fingerprint,
        template=template,
        vocab_size=len(vocabulary.tokens),
        tools=[CALCULATOR] if counts["train"].has_tools else [],  # models are trained to call no other tool
        sources=sort_sources(tokens, numbers),
        **{
            name: {split: getattr(count, name) for split, count in counts.items()}
            for name in ("bytes", "conversations", "tokens")
        },
    )
    write_meta(tokens, meta)
