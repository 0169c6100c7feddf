"""Load a tokenizer from any supported file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import read_binary
from chatmill.tokenizer.formats.legacy_files import MERGES_FILES, VOCAB_TXT, read_vocab_and_merges, read_vocab_txt
from chatmill.tokenizer.formats.tiktoken_files import description_file, read_tiktoken
from chatmill.tokenizer.formats.tiktoken_pickle import read_tiktoken_pickle
from chatmill.tokenizer.formats.validation import check_vocabulary
from chatmill.tokenizer.vocabulary.preprocessing import adds_prefix_space, changed_text, drop_harmless_steps
from chatmill.tokenizer.vocabulary.sentencepiece_model import read_sentencepiece_model
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION, read_folder
from chatmill.tokenizer.vocabulary.tokenizer_json import read_tokenizer_json
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

READERS: dict[str, Callable[[Path], Vocabulary]] = {
    ".json": read_tokenizer_json,
    ".model": read_sentencepiece_model,
    ".bin": read_binary,
    ".tiktoken": read_tiktoken,
    ".pkl": read_tiktoken_pickle,
    ".txt": read_vocab_txt,
}
IN_FOLDERS = ("tokenizer.json", "tokenizer.model", *MERGES_FILES, VOCAB_TXT)
MAX_FILE_BYTES = 1 << 28


def load(path: Path | str) -> ChatTokenizer:
    """The tokenizer in a folder or file. Raises ValueError with the file and the remedy.

    Steps that put a space before every text (then `leading_space` is set) or normalise to NFC are left out; a tokenizer
    that changes text in other ways is refused.
    """
    try:
        vocabulary = read_vocabulary(Path(path))
        return ChatTokenizer(make_lossless(vocabulary), leading_space=adds_prefix_space(vocabulary.steps))
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error


def make_lossless(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary without optional steps, so that the tokens of a text are exactly its bytes.

    Raises ValueError if other steps remain.
    """
    plain = replace(vocabulary, steps=drop_harmless_steps(vocabulary.steps))
    if plain.steps is not None and (example := changed_text(plain.steps)):
        raise ValueError("it changes text, {!r} into {!r}: its tokens are not the bytes of the text".format(*example))
    if not plain.lossless:
        raise ValueError("it has no token for some text: its tokens are not the bytes of the text")
    return plain


def files_of(path: Path) -> list[Path]:
    """All files from which a tokenizer's file is read, itself included. Raises ValueError for a folder."""
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, got a folder: give the tokenizer's file in it")
    pairs = {name: pair for pair in MERGES_FILES.items() for name in pair}
    if path.name in pairs:
        return [path.with_name(name) for name in pairs[path.name]]
    return [path, *(file for file in [description_file(path)] if path.suffix == ".tiktoken" and file.exists())]


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a folder or file, whose format follows from its name."""
    if (path / DESCRIPTION).is_file():
        return read_folder(path)
    file = next((path / name for name in IN_FOLDERS if (path / name).is_file()), path)
    if not file.is_file():
        raise ValueError(f"{file}: no such file: expected a tokenizer's folder or file")
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{file}: not a tokenizer: it has over {MAX_FILE_BYTES:,} bytes")
    pairs = {name: vocabulary for vocabulary, merges in MERGES_FILES.items() for name in (vocabulary, merges)}
    read = read_vocab_and_merges if file.name in pairs else READERS.get(file.suffix)
    if read is None:
        raise ValueError(f"{file}: not a tokenizer: expected a folder or a file that ends in {', '.join(READERS)}")
    file = file.with_name(pairs.get(file.name, file.name))
    vocabulary = read(file)
    try:
        check_vocabulary(vocabulary)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return vocabulary
