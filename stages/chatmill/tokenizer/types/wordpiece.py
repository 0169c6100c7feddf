"""WordPiece on bytes: the longest entry that a piece begins with, then the longest that continues it, and so on.

Every byte is an entry twice, at the start of a piece and inside it, so that any text can be spelt.
"""

from collections.abc import Iterable

from pydantic import BaseModel
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from chatmill.tokenizer.patterns import Pattern, bounded
from chatmill.tokenizer.tokenizer_json import CONTINUATION, byte_level_entry
from chatmill.tokenizer.vocabulary import Kind, Vocabulary, rank_scores

MINIMUM = 512  # text tokens
EXACT = True  # fewer text tokens than asked are an error


class Settings(BaseModel, extra="forbid"):
    """How text is cut into pieces; those of over 100 bytes are cut further."""

    pattern: Pattern = "qwen2"


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """Both bytes, and longer entries in the order in which joining the most frequent neighbours makes them."""
    pattern = bounded(settings.pattern)
    alphabet = [bytes([byte]) for byte in range(256)]
    single = [(byte, kind) for kind in (Kind.NORMAL, Kind.CONTINUATION) for byte in alphabet]
    longer = [entry for entry in _learn(texts, num_text, pattern) if len(entry[0]) > 1]
    tokens, kinds = zip(*single, *longer[: num_text - len(single)], strict=True)
    return Vocabulary("wordpiece", "wordpiece", pattern, tokens, kinds, rank_scores(tokens, kinds))


def _learn(texts: Iterable[str], num_text: int, pattern: str) -> list[tuple[bytes, Kind]]:
    tokenizer = Tokenizer(models.WordPiece(continuing_subword_prefix=CONTINUATION))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=num_text,  # bytes that the text lacks leave room for more entries, which are cut off
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return [byte_level_entry(piece) for piece in sorted(ids, key=ids.__getitem__)]
