"""Encoded conversations and documents on disk: what `encode` writes and `train_model` reads.

A folder with, for each split,

    train_ids.npy      uint16 or uint32   all conversations, one after another
    train_loss.npy     uint8              chatmill.conversation.LossKind of each token
    train_offsets.npy  int64              conversation i is ids[offsets[i]:offsets[i + 1]]
    train_sources.npy  uint16             the source of each conversation, an index of `sources` in meta.json

and meta.json, which describes how they were encoded.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.conversation import LossKind, TemplateName
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest, write_manifest
from chatmill.tokenizer.encoding.chat_tokenizer import EncodedConversations
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

SPLITS = ("train", "validation")
_BLOCK = 1 << 20  # numbers that are read at once


class SplitCounts(NamedTuple):
    """The size of a split, whose bytes are those of text, and whether a conversation declares the calculator."""

    bytes: int
    conversations: int
    tokens: int
    has_tools: bool
    lossy: int  # conversations with characters that the tokenizer cannot say


class EncodedSplit(EncodedConversations):
    """The conversations and documents of a split."""

    @property
    def is_document(self) -> NDArray[np.bool]:
        """(N,) whether each is a document, which is trained from its second token on; a conversation has a header."""
        has_text = np.diff(self.offsets) > 1
        result = np.zeros(len(has_text), np.bool)
        result[has_text] = self.loss[self.offsets[:-1][has_text] + 1] == LossKind.TRAINED
        return result


class Sources(NamedTuple):
    """The source of each of N conversations."""

    names: Sequence[str]  # of all sources, for those of a split sorted
    of_conversations: NDArray[np.uint16]  # (N,) indices of names


class EncodedShard(NamedTuple):
    """The records of a shard, and what is counted of them."""

    encoded: EncodedConversations
    sources: list[str]  # of each record
    bytes: int  # of text
    has_tools: bool  # whether one declares the calculator
    lossy: int  # conversations with characters that the tokenizer cannot say


@dataclass(frozen=True, slots=True)
class Meta:
    """How conversations were encoded, and their sizes, of which the last three map a split to a number."""

    fingerprint: str
    template: TemplateName
    vocab_size: int
    tools: Sequence[str]  # that conversations of train declare, and models can call
    sources: Sequence[str]  # the names of all, sorted
    bytes: Mapping[str, int]  # of text; control tokens have none
    conversations: Mapping[str, int]
    tokens: Mapping[str, int]


def write_split(
    folder: Path, split: str, shards: Iterable[EncodedShard], vocab_size: int, numbers: dict[str, int]
) -> SplitCounts:
    """Write one split, a shard at a time; `numbers` are those of the sources until all are known: it adds to them."""
    ids_type = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    text, has_tools, lossy = 0, False, 0
    with ExitStack() as files:
        types = {"ids": ids_type, "loss": np.uint8, "offsets": np.int64, "sources": np.uint16}
        ids, loss, offsets, sources = (
            files.enter_context(ArrayWriter(folder / f"{split}_{name}.npy", type)) for name, type in types.items()
        )
        offsets.append(np.zeros(1))
        for shard in shards:
            offsets.append(shard.encoded.offsets[1:] + ids.length)
            ids.append(shard.encoded.ids)
            loss.append(shard.encoded.loss)
            sources.append(np.array([numbers.setdefault(name, len(numbers)) for name in shard.sources], np.uint16))
            text += shard.bytes
            has_tools |= shard.has_tools
            lossy += shard.lossy
    return SplitCounts(text, offsets.length - 1, ids.length, has_tools, lossy)


class ArrayWriter:
    """Writes an array (N,) to a .npy file in the order in which it comes. Used in a `with` statement."""

    def __init__(self, file: Path, dtype: type[np.generic]) -> None:
        self.file, self.dtype, self.length = file, np.dtype(dtype), 0

    def __enter__(self) -> "ArrayWriter":
        self._stream = self.file.open("w+b")
        self._write_header()
        return self

    def append(self, values: NDArray[Any]) -> None:
        self._stream.write(np.ascontiguousarray(values, self.dtype).data)
        self.length += len(values)

    def __exit__(self, *error: object) -> None:
        self._stream.seek(0)
        self._write_header()
        self._stream.close()

    def _write_header(self) -> None:
        """Write the header, whose size does not depend on the length, once before the numbers and once after them."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._stream, header)


def sort_sources(folder: Path, numbers: Mapping[str, int]) -> list[str]:
    """Number the sources of all splits in the order of their names, and return these."""
    names = sorted(numbers)
    place = np.array([names.index(name) for name in numbers], np.uint16)
    for split in SPLITS:
        sources = np.load(folder / f"{split}_sources.npy", mmap_mode="r+")
        for start in range(0, len(sources), _BLOCK):
            sources[start : start + _BLOCK] = place[sources[start : start + _BLOCK]]
    return names


def write_meta(folder: Path, meta: Meta) -> None:
    """Write meta.json and the manifest, which complete a folder of splits."""
    (folder / "meta.json").write_text(json.dumps(asdict(meta), indent=1) + "\n", encoding="utf-8")
    write_manifest(folder, kind="tokens", fingerprint=meta.fingerprint)


def read_meta(folder: Path) -> Meta:
    """The metadata of a folder of tokens. Raises ValueError if it is damaged or another kind of folder."""
    if check_manifest(folder) is None:
        raise ValueError(
            f"{folder}: no {MANIFEST_NAME}: not written by encode, or incomplete: run the encode stage anew"
        )
    file = folder / "meta.json"
    try:
        return Meta(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: not written by encode: {error}") from error


def read_inputs(tokens: Path, tokenizer: Path) -> tuple[Meta, Vocabulary]:
    """The metadata of the tokens, and the tokenizer, which must be the one that encoded them."""
    meta, vocabulary = read_meta(tokens), read_folder(tokenizer)
    if meta.fingerprint != vocabulary.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer than {tokenizer}: run the encode stage anew")
    return meta, vocabulary


def read_split(folder: Path, split: str) -> EncodedSplit:
    return EncodedSplit(*(np.load(folder / f"{split}_{name}.npy", mmap_mode="r") for name in EncodedSplit._fields))


def read_sources(folder: Path, split: str, meta: Meta) -> Sources:
    return Sources(meta.sources, np.load(folder / f"{split}_sources.npy"))
