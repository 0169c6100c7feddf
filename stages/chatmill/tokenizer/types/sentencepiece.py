"""SentencePiece, as a unigram model or as BPE over characters; what it does not cover is encoded as bytes."""

import io
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from chatmill.pipeline.progress import log
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MINIMUM = 277  # text tokens: bytes, the characters below, and the unknown token; most texts need more
EXACT = True  # fewer text tokens than requested are an error
REQUIRED_CHARS = "<0x123456789ABCDEF>"  # otherwise `<0x41>` in text could become the byte 0x41 in other runtimes
SCORE_RESOLUTION = 64  # scores are multiples of 1/64, so that their sums are exact in float32 and in float64
SECONDS_PER_CHARACTER = 1e-5  # of distinct words: 0.7e-5 in English, 1.2e-5 in 112 languages together
LONG_SECONDS = 20
# Without characters that SentencePiece reserves, and shorter than the 4,192 bytes from which on it skips a word.
WORD = re.compile(" ?[^ \n\0\t\u2581\u2585]{1,1000}\n{0,100}|\n{1,1000}| ")


class Settings(BaseModel, extra="forbid"):
    """The algorithm, and the share of the text's characters that have a piece of their own."""

    algorithm: Literal["unigram", "bpe"] = "unigram"
    character_coverage: float = Field(0.9995, gt=0, le=1)


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """A vocabulary of at most `num_text` - 1 tokens: SentencePiece reserves an id for unknown text."""
    trained, counts = io.BytesIO(), _count_words(texts)
    _log_estimate(counts, settings)
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(counts.items())),
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
        raise ValueError(f"{error}: change train_tokenizer.vocab_size or train_tokenizer.sentencepiece") from error
    model = ModelProto.FromString(trained.getvalue())
    del model.pieces[0]  # the unknown piece, which is added again after the control tokens
    for piece in model.pieces:
        piece.score = round(piece.score * SCORE_RESOLUTION) / SCORE_RESOLUTION
    return from_model_proto(model)


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each distinct word occurs: memory and time grow with these, and not with the text."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    return counts


def _log_estimate(counts: Counter[str], settings: Settings) -> None:
    """Log how long a unigram model takes, if that is long: where words are long and rare, it is."""
    size = sum(map(len, counts))
    seconds = SECONDS_PER_CHARACTER * size if settings.algorithm == "unigram" else 0.0
    if seconds > LONG_SECONDS:
        log(
            "train_tokenizer",
            f"unigram: {len(counts):,} distinct words of {size:,} characters take about {seconds / 60:.1f} minutes on "
            "two idle cores: a lower train_tokenizer.max_bytes takes less, and algorithm: bpe a tenth",
        )
