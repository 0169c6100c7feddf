"""Compare the exports of a tokenizer with the original in the library that it was made for."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tiktoken
from sentencepiece import SentencePieceProcessor
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer

from chatmill.pipeline.manifest import read_text
from chatmill.tokenizer.encoding.backends import choose_backend, to_tiktoken_encoding
from chatmill.tokenizer.encoding.chat_tokenizer import check_text
from chatmill.tokenizer.formats.tiktoken_files import has_no_capitals, merges_file_of, read_description, read_ranks
from chatmill.tokenizer.formats.tokenizer_loading import detect_format, read_vocabulary, tokenizer_file
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

Encode = Callable[[list[str]], list[list[int]]]


class Original(NamedTuple):
    """A tokenizer in its own library, without the tokens that are put around a text."""

    library: str
    encode: Encode  # the names of special tokens in text are text
    encode_with_special: Encode | None  # the names of special tokens in text are the tokens; None if never


def open_original(path: Path, vocabulary: Vocabulary) -> Original:
    """Open the tokenizer at `path` in its own library, or a format of chatmill's own in chatmill.

    It was read as `vocabulary` before, which checks it. A pickle is not opened: its encoding is made from `vocabulary`.
    """
    file = tokenizer_file(path)
    match None if (path / DESCRIPTION).is_file() else detect_format(file):
        case "tokenizer_json":
            return open_hugging_face(file)
        case "ranks":
            ranks = read_ranks(file)
            name, pattern, special = read_description(file, ranks)
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
            return Original("tiktoken", _tiktoken(encoding), _tiktoken(encoding, special=True))
        case "pickle":
            encoding = to_tiktoken_encoding(vocabulary)
            return Original("tiktoken", _tiktoken(encoding), _tiktoken(encoding, special=True))
        case "sentencepiece":
            return Original("sentencepiece", SentencePieceProcessor(model_proto=file.read_bytes()).encode, None)
        case "vocab_and_merges":
            byte_level = ByteLevelBPETokenizer.from_file(str(file), str(merges_file_of(file)))
            return Original("tokenizers", _tokenizers(byte_level._tokenizer), None)
        case "vocab_txt":
            lowercase = has_no_capitals(file.read_text(encoding="utf-8").split())
            bert = BertWordPieceTokenizer(str(file), lowercase=lowercase)
            return Original("tokenizers", _tokenizers(bert._tokenizer), None)
    return Original("chatmill", _chatmill(vocabulary), None)


def _chatmill(vocabulary: Vocabulary) -> Encode:
    encode = choose_backend(vocabulary).encode
    return lambda texts: [ids.tolist() for ids in encode(texts)]


def _tiktoken(encoding: tiktoken.Encoding, *, special: bool = False) -> Encode:
    return partial(encoding.encode_batch, allowed_special="all") if special else encoding.encode_ordinary_batch


def _tokenizers(tokenizer: Tokenizer, *, special: bool = False) -> Encode:
    """Encodes by the library tokenizers. A special token's name in text is that token if `special`, else plain text."""
    tokenizer.encode_special_tokens = not special
    tokenizer.no_truncation()  # the lengths of texts are the program's choice, and no part of a tokenizer
    tokenizer.no_padding()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def open_hugging_face(file: Path) -> Original:
    """What transformers loads from a tokenizer.json with a tokenizer_config.json beside it; else that file alone.

    The `tokenizer_class` in the latter may add steps: transformers' Qwen2Tokenizer always normalises to NFC.
    """
    library, content = "tokenizers", file.read_text(encoding="utf-8")
    if (file.parent / "tokenizer_config.json").is_file():
        try:
            from transformers import AutoTokenizer  # an extra

            loaded = AutoTokenizer.from_pretrained(file.parent, local_files_only=True)
            library, content = f"transformers ({type(loaded).__name__})", loaded.backend_tokenizer.to_str()
        except ImportError:
            library += " (transformers may load it otherwise: pip install 'chatmill[hf]' to compare with that)"
        except (ValueError, OSError, LookupError, TypeError, AttributeError) as error:
            library += f" (transformers does not load it: {' '.join(str(error).split()):.200})"
    plain, parsing = (_tokenizers(Tokenizer.from_str(content), special=special) for special in (False, True))
    return Original(library, plain, parsing)


def read_texts(file: Path) -> list[str]:
    """The distinct lines of a text file. Raises ValueError if it is not UTF-8, or a line cannot be encoded."""
    lines = read_text(file).split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            check_text(line)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    return list(dict.fromkeys(lines))


def load_encoders(folder: Path, *, special: bool = False) -> dict[str, Encode]:
    """The encoder of each export in a folder, by file name.

    The names of control tokens in text are text; with `special` they are the tokens, for the readers that can do so.
    """
    readers: dict[str, Callable[[Path], Encode]] = {
        "tokenizer.bin": lambda file: _chatmill(read_vocabulary(file)),
        "tokenizer.pkl": lambda file: _tiktoken(to_tiktoken_encoding(read_vocabulary(file)), special=special),
        "tokenizer.tiktoken": lambda file: _tiktoken(to_tiktoken_encoding(read_vocabulary(file)), special=special),
        "tokenizer.json": lambda file: _tokenizers(Tokenizer.from_file(str(file)), special=special),
        "tokenizer.model": lambda file: SentencePieceProcessor(model_file=str(file)).encode,
    }
    never_special = ("tokenizer.bin", "tokenizer.model") if special else ()
    names = (name for name in readers if name not in never_special and (folder / name).exists())
    return {name: readers[name](folder / name) for name in names}


def compare_exports(
    original: Original,
    folder: Path,
    texts: Sequence[str],
    special: Mapping[str, int],
    added_names: Collection[str] = (),
) -> Iterator[str]:
    """What the original is, and for each export on how many texts its ids are equal, with a text that differs.

    Texts that name a `special` token are compared twice: as text, but for those in which the original finds it even so,
    and as the tokens, if the original can find them. `added_names` are special tokens that the original does not have.
    """
    yield f"compared with {original.library}:"
    expected = {text: ids for text, ids in zip(texts, original.encode(list(texts)), strict=True)}
    plain = {text: ids for text, ids in expected.items() if not names_found(special, text, ids)}
    skipped = len(texts) - len(plain)
    remark = f"; skipped {skipped:,} in which the original finds a special token" if skipped else ""
    results = {name: _compare(plain, encode) + remark for name, encode in load_encoders(folder).items()}
    if original.encode_with_special is not None:
        known = [text for text in texts if not any(name in text for name in added_names)]
        expected = dict(zip(known, original.encode_with_special(known), strict=True))
        for name, encode in load_encoders(folder, special=True).items():
            results[name] += f"; with special tokens found in text: {_compare(expected, encode)}"
    for name, result in results.items():
        yield f"{name:20} {result}"


def names_found(special: Mapping[str, int], text: str, ids: Sequence[int]) -> list[str]:
    """The special tokens that a text names and whose ids it has, although their names should be text."""
    return [name for name, i in special.items() if name in text and i in ids]


def _compare(expected: Mapping[str, list[int]], encode: Encode) -> str:
    texts = list(expected)
    differing = [text for text, ids in zip(texts, encode(texts), strict=True) if ids != expected[text]]
    remark = f", different on {len(differing):,}, such as {differing[0][:80]!r}" if differing else ""
    return f"equal on {len(texts) - len(differing):,} texts{remark}"
