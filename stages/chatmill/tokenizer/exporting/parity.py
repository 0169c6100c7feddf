"""Check that every export of a tokenizer gives the same ids as its own algorithm."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from chatmill.pipeline.progress import progress
from chatmill.tokenizer.encoding.chat_tokenizer import check_text
from chatmill.tokenizer.encoding.tiktoken_ranks import special_tokens_of, to_tiktoken_encoding
from chatmill.tokenizer.formats.binary import open_binary
from chatmill.tokenizer.formats.reference_encoder import ReferenceEncoder
from chatmill.tokenizer.formats.tiktoken_files import read_tiktoken
from chatmill.tokenizer.formats.tiktoken_pickle import read_tiktoken_pickle
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

Encode = Callable[[list[str]], list[list[int]]]


def read_texts(file: Path) -> list[str]:
    """The distinct lines of a text file. Raises ValueError if it is not UTF-8, or a line cannot be encoded."""
    try:
        lines = file.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
    for number, line in enumerate(lines, start=1):
        try:
            check_text(line)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    return list(dict.fromkeys(lines))


def load_encoders(folder: Path) -> dict[str, Encode]:
    """The encoder of each export in a folder, by file name; control tokens' names in text are text."""
    readers: dict[str, Callable[[Path], Encode]] = {
        "tokenizer.bin": _binary,
        "tokenizer.pkl": lambda file: to_tiktoken_encoding(read_tiktoken_pickle(file)).encode_ordinary_batch,
        "tokenizer.tiktoken": lambda file: to_tiktoken_encoding(read_tiktoken(file)).encode_ordinary_batch,
        "tokenizer.json": _tokenizers,
        "tokenizer.model": lambda file: SentencePieceProcessor(model_file=str(file)).encode,
    }
    return {name: read(folder / name) for name, read in readers.items() if (folder / name).exists()}


def _binary(file: Path) -> Encode:
    binary = open_binary(file)
    return lambda texts: [binary.encode(text) for text in progress(texts, file.name, unit=" texts")]


def _tokenizers(file: Path) -> Encode:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True
    return lambda texts: [encoded.ids for encoded in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def compare_exports(vocabulary: Vocabulary, folder: Path, texts: Sequence[str]) -> Iterator[str]:
    """One line for each export: the number of texts with equal ids, and the first text with other ids."""
    encoder = ReferenceEncoder(vocabulary)
    expected = {text: encoder.encode(text) for text in progress(texts, "reference encoder", unit=" texts")}
    for name, encode in load_encoders(folder).items():
        taken = drop_texts_with_special_tokens(texts, vocabulary) if name == "tokenizer.json" else list(texts)
        differing = [text for text, ids in zip(taken, encode(taken), strict=True) if ids != expected[text]]
        remark = f"; different on {len(differing):,}, such as {differing[0][:80]!r}" if differing else ""
        if len(taken) < len(texts):
            remark += f"; skipped {len(texts) - len(taken):,} that contain a control token's name"
        yield f"{name:20} equal on {len(taken) - len(differing):,} texts{remark}"


def drop_texts_with_special_tokens(texts: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """The texts without a control token's name, which some readers of a tokenizer.json take for the token."""
    names = "|".join(map(re.escape, special_tokens_of(vocabulary)))
    return [text for text in texts if not names or not re.search(names, text)]
