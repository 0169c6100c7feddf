"""A tokenizer made elsewhere, with the control tokens of chats after its last id."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from chatmill.tokenizer.loading import read_vocabulary
from chatmill.tokenizer.vocabulary import Kind, Vocabulary

MINIMUM = 0  # text tokens; the file decides
EXACT = False


class Settings(BaseModel, extra="forbid"):
    """Any folder or file that chatmill.tokenizer.load reads."""

    path: Path


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The file's vocabulary, whatever the texts and the size that is asked for."""
    vocabulary = read_vocabulary(settings.path)
    if any(kind >= Kind.CONTROL for kind in vocabulary.kinds[: vocabulary.num_text]):
        raise ValueError(f"{settings.path}: its control tokens stand before text tokens: use another tokenizer")
    return vocabulary
