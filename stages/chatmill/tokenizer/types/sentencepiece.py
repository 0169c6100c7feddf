"""SentencePiece, as a unigram model or as BPE over characters; what it does not cover is encoded as bytes."""

import io
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MINIMUM = 277  # text tokens: bytes, the characters below, and the unknown token; most texts need more
REQUIRED_CHARS = "<0x123456789ABCDEF>"  # otherwise `<0x41>` in text could become the byte 0x41 in other runtimes
SCORE_RESOLUTION = 64  # scores are multiples of 1/64, so that their sums are exact in float32 and in float64
# Without characters that SentencePiece reserves, and shorter than the 4,192 bytes from which on it skips a word.
WORD = re.compile(" ?[^ \n\0\t\u2581\u2585]{1,1000}\n{0,100}|\n{1,1000}| ")


class Settings(BaseModel, extra="forbid"):
    """The algorithm, and the share of the text's characters that have a piece of their own."""

    algorithm: Literal["unigram", "bpe"] = "unigram"
    character_coverage: float = Field(0.9995, gt=0, le=1)


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """A vocabulary of at most `num_text` - 1 tokens: SentencePiece reserves an id for unknown text."""
    counts: Counter[str] = Counter()  # of distinct words: memory and time grow with these, and not with the text
    for text in texts:
        counts.update(WORD.findall(text))
    trained = io.BytesIO()
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
    return from_model_proto(model, is_own=True)
