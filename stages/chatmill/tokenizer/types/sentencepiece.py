"""SentencePiece, as a unigram model or as BPE on characters; whatever they do not cover is spelt in bytes."""

import io
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import sentencepiece
from pydantic import BaseModel, Field
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from chatmill.tokenizer.tokenizer_json import SPACE
from chatmill.tokenizer.vocabulary import Kind, Vocabulary, rank_scores

MINIMUM = 384  # text tokens: bytes, and room for letters
EXACT = True  # fewer text tokens than asked are an error


class Settings(BaseModel, extra="forbid"):
    """How pieces are chosen, and what share of the text's characters are pieces of their own."""

    algorithm: Literal["unigram", "bpe"] = "unigram"
    character_coverage: float = Field(0.9995, gt=0, le=1)
