"""Any tokenizer, from any file that can be read."""

from collections.abc import Callable
from pathlib import Path

from chatmill.tokenizer.binary import read_binary
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.files import DESCRIPTION, read_folder
from chatmill.tokenizer.sentencepiece_model import read_model
from chatmill.tokenizer.tiktoken_files import read_tiktoken
from chatmill.tokenizer.tiktoken_pickle import read_tiktoken_pickle
from chatmill.tokenizer.tokenizer_json import read_tokenizer_json
from chatmill.tokenizer.vocabulary import Vocabulary

READERS: dict[str, Callable[[Path], Vocabulary]] = {
    ".json": read_tokenizer_json,
    ".model": read_model,
    ".bin": read_binary,
    ".tiktoken": read_tiktoken,
    ".pkl": read_tiktoken_pickle,
}


def load(path: Path | str) -> ChatTokenizer:
    """The tokenizer in a folder or file. Raises ValueError with place and remedy."""
    return ChatTokenizer(read_vocabulary(Path(path)))


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a folder or file, told apart by name."""
    if (path / DESCRIPTION).is_file():
        return read_folder(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{file}: no such file: expected a tokenizer's folder or file")
    if file.suffix not in READERS:
        raise ValueError(f"{file}: not a tokenizer: expected a folder or a file that ends in {', '.join(READERS)}")
    return READERS[file.suffix](file)
