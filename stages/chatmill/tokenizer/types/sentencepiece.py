"""SentencePiece, as a unigram model or as BPE on characters; whatever they do not cover is spelt in bytes."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, Field
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MINIMUM = 277  # text tokens: bytes, the characters below, and one for unknown text; mostly more letters
EXACT = True  # fewer text tokens than asked are an error
REQUIRED_CHARS = "<0x123456789ABCDEF>"  # else `<0x41>` in text could become the byte 0x41 in other runtimes
SCORE_RESOLUTION = (
    64  # steps of scores in 1: sums are then exact in float32, as SentencePiece adds them, and elsewhere in float64
)
WORD = re.compile(" ?[^ \n\0\t\u2581\u2585]+\n*|\n+| ")  # without the characters that SentencePiece keeps to itself


class Settings(BaseModel, extra="forbid"):
    """How pieces are chosen, and what share of the text's characters are pieces of their own."""

    algorithm: Literal["unigram", "bpe"] = "unigram"
    character_coverage: float = Field(0.9995, gt=0, le=1)


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """One token less than `num_text`: SentencePiece keeps an id for unknown text."""
    trained = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_counted_words(texts),
            input_format="tsv",
            model_writer=trained,
            model_type=settings.algorithm,
            vocab_size=num_text,
            hard_vocab_limit=False,
            character_coverage=settings.character_coverage,
            required_chars=REQUIRED_CHARS,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            bos_id=-1,
            eos_id=-1,
            num_threads=2,  # the scores depend on it
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{error}: see train_tokenizer.vocab_size and train_tokenizer.sentencepiece") from error
    model = ModelProto.FromString(trained.getvalue())
    del model.pieces[0]  # for unknown text; it comes back after the control tokens
    for piece in model.pieces:
        piece.score = round(piece.score * SCORE_RESOLUTION) / SCORE_RESOLUTION
    return from_model_proto(model)


def _counted_words(texts: Iterable[str]) -> Iterator[str]:
    """`word TAB count` for each stretch that a piece may lie in; so memory grows with the words, not with the text."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    for word, count in sorted(counts.items()):
        yield f"{word}\t{count}"
