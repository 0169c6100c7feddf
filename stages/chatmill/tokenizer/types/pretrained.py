"""A tokenizer made elsewhere, with the control tokens of chats after its last id."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from chatmill.pipeline.checksum import check_sha256
from chatmill.tokenizer.formats.loading import as_it_is, files_of, read_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MINIMUM = 0  # text tokens; the file decides
EXACT = False


class Settings(BaseModel, extra="forbid"):
    """Any file that chatmill.tokenizer.load reads, and its checksum: DVC tracks parameters, but not this file.

    Of two files, such as encoder.json and vocab.bpe, it is that of both, one after the other.
    """

    path: Path
    sha256: str


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The file's vocabulary, whatever the texts and the size that is asked for.

    A space that it would put before every text, and a normaliser to NFC, are left out.
    """
    vocabulary = read_vocabulary(settings.path)
    try:
        plain = as_it_is(vocabulary)
    except ValueError as error:
        raise ValueError(f"{settings.path}: {error}: use a tokenizer that keeps every character") from error
    check_sha256(files_of(settings.path), settings.sha256, "train_tokenizer.pretrained.sha256", settings.path)
    return plain
