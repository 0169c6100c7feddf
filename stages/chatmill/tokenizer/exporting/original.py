"""A tokenizer in the library that it was made for, read from its own file: what exports are compared with."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tiktoken
from sentencepiece import SentencePieceProcessor
from tokenizers import BertWordPieceTokenizer, Tokenizer, models, pre_tokenizers

from chatmill.tokenizer.encoding.tiktoken_ranks import to_tiktoken_encoding
from chatmill.tokenizer.formats.detection import detect_format
from chatmill.tokenizer.formats.legacy_files import has_no_capitals, merges_file_of
from chatmill.tokenizer.formats.reference_encoder import ReferenceEncoder
from chatmill.tokenizer.formats.tiktoken_files import read_description, read_ranks
from chatmill.tokenizer.formats.tokenizer_loading import tokenizer_file
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

Encode = Callable[[list[str]], list[list[int]]]


class Original(NamedTuple):
    """A tokenizer in its own library, without the tokens that are put around a text."""

    library: str
    encode: Encode  # the names of special tokens in text are text
    encode_with_special: Encode | None  # the names of special tokens in text are the tokens; None if never


def open_original(path: Path, vocabulary: Vocabulary) -> Original:
    """The original of a vocabulary that was read from `path`, and is therefore safe to open in its library."""
    if (path / DESCRIPTION).is_file():
        return _own(vocabulary)
    file = tokenizer_file(path)
    match detect_format(file):
        case "tokenizer_json":
            return Original("tokenizers", open_tokenizers(file, special=False), open_tokenizers(file, special=True))
        case "ranks":
            ranks = read_ranks(file)
            name, pattern, special = read_description(file, ranks)
            return _tiktoken(tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special))
        case "pickle":
            return _tiktoken(to_tiktoken_encoding(vocabulary))
        case "sentencepiece":
            return Original("sentencepiece", SentencePieceProcessor(model_proto=file.read_bytes()).encode, None)
        case "vocab_and_merges":
            return Original("tokenizers", _batch(_byte_level(file)), None)
        case "vocab_txt":
            return Original("tokenizers", _bert(file), None)
    return _own(vocabulary)


def _own(vocabulary: Vocabulary) -> Original:
    encode = ReferenceEncoder(vocabulary).encode
    return Original("chatmill's reference encoder", lambda texts: list(map(encode, texts)), None)


def _tiktoken(encoding: tiktoken.Encoding) -> Original:
    return Original("tiktoken", encoding.encode_ordinary_batch, find_special(encoding))


def find_special(encoding: tiktoken.Encoding) -> Encode:
    """An encoding of tiktoken that takes the names of special tokens in text for the tokens."""
    return lambda texts: encoding.encode_batch(texts, allowed_special="all")


def open_tokenizers(file: Path, *, special: bool) -> Encode:
    """A tokenizer.json in `tokenizers`; with `special`, the names of special tokens in text are the tokens."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = not special
    tokenizer.no_truncation()  # the lengths of texts are the program's choice, and no part of a tokenizer
    tokenizer.no_padding()
    return _batch(tokenizer)


def _batch(tokenizer: Tokenizer) -> Encode:
    return lambda texts: [encoded.ids for encoded in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _bert(file: Path) -> Encode:
    lowercase = has_no_capitals(file.read_text(encoding="utf-8").split())
    tokenizer = BertWordPieceTokenizer(str(file), lowercase=lowercase)
    tokenizer._tokenizer.encode_special_tokens = True
    return lambda texts: [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def _byte_level(file: Path) -> Tokenizer:
    merges = merges_file_of(file)
    assert merges is not None, "the vocabulary was read with them"
    tokenizer = Tokenizer(models.BPE.from_file(str(file), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer
