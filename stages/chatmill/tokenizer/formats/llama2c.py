"""tokenizer.llama2c.bin: the records that C engines read in sequence, as in karpathy/llama2.c's tokenizer.py.

Little-endian, as the bytes lie:

    u32 length of the longest token
    for each id in order:  f32 score   u32 length   the token's bytes

The file has neither the number of tokens nor the split pattern; readers know both from the model, so a vocabulary
cannot be read back. `read_llama2c` reads files that were made from a SentencePiece model, such as llama2.c's own.

Inside a piece, readers start from single bytes and merge the adjacent pair whose token has the best score, until none
makes a token. For char and sentencepiece they start from characters, or the bytes of characters without a token.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from chatmill.tokenizer.formats.validation import check_vocabulary
from chatmill.tokenizer.vocabulary.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, to_normalizer_spec
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_json import unmerged
from chatmill.tokenizer.vocabulary.vocabulary import MAX_TOKEN_BYTES, TEXT_KINDS, Vocabulary

RECORD_HEADER = struct.Struct("<fI")  # score and length, before a token's bytes
UNKNOWN_ID, CONTROL_NAMES, BYTE_IDS = 0, ("<s>", "</s>"), range(3, 259)  # ids in files made from a SentencePiece model


def token_records(vocabulary: Vocabulary) -> list[bytes]:
    """The record of each token, in id order."""
    return [
        RECORD_HEADER.pack(score, len(token)) + token
        for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)
    ]


def longest_token(vocabulary: Vocabulary) -> int:
    """The length of the longest token in bytes, for which a reader reserves memory."""
    return max(map(len, vocabulary.tokens))


def write_llama2c(vocabulary: Vocabulary, file: Path) -> None:
    """Write the records."""
    file.write_bytes(struct.pack("<I", longest_token(vocabulary)) + b"".join(token_records(vocabulary)))


def read_llama2c(file: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary in a file made from a SentencePiece model of `vocab_size` tokens.

    A space is put before a text, tokens are merged by the best score, and characters without a token become bytes.
    Raises ValueError for other files.
    """
    try:
        vocabulary = from_model_proto(_as_model(list(_read_records(file.read_bytes(), vocab_size))))
        check_vocabulary(vocabulary)
    except ValueError as error:
        raise ValueError(f"{file}: not a tokenizer of llama2.c for {vocab_size} tokens: {error}") from error
    return vocabulary


def _read_records(data: bytes, vocab_size: int) -> Iterator[tuple[float, str]]:
    place, seen = 4, set()
    for number in range(vocab_size):
        if place + RECORD_HEADER.size > len(data):
            raise ValueError(f"it has only {number}")
        score, length = RECORD_HEADER.unpack_from(data, place)
        place += RECORD_HEADER.size + length
        if length > MAX_TOKEN_BYTES or place > len(data):
            raise ValueError(f"its token {number} is truncated or too long")
        text = data[place - length : place].decode()
        if not math.isfinite(score) or (number not in BYTE_IDS and len(text) > 1 and score in seen):
            raise ValueError(f"its token {number}, {text!r:.80}, has the score {score}: not finite, or another token's")
        seen |= {score} if number > BYTE_IDS[-1] and len(text) > 1 else set()
        yield score, text
    if place != len(data):
        raise ValueError("it has more")


def _as_model(entries: list[tuple[float, str]]) -> ModelProto:
    """The SentencePiece model from which the records were made; they have newlines around `<s>` and `</s>`."""
    if [text for _, text in entries[BYTE_IDS.start : BYTE_IDS.stop]] != [f"<0x{byte:02X}>" for byte in range(256)]:
        raise ValueError("its tokens 3 to 258 are not the bytes")
    spec = to_normalizer_spec(None)
    spec.add_dummy_prefix = True
    model = ModelProto(normalizer_spec=spec)
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = TrainerSpec.BPE, True
    types = {UNKNOWN_ID: "UNKNOWN"} | dict.fromkeys((1, 2), "CONTROL") | dict.fromkeys(BYTE_IDS, "BYTE")
    for index, (score, text) in enumerate(entries):
        if index in (1, 2) and text.strip() != CONTROL_NAMES[index - 1]:
            raise ValueError(f"its token {index}: expected {CONTROL_NAMES[index - 1]}, got {text!r}")
        piece = text.strip() if index < BYTE_IDS.start else text.replace(" ", METASPACE)
        kind = ModelProto.SentencePiece.Type.Value(types.get(index, "NORMAL"))
        model.pieces.add(piece=piece, score=score, type=kind)
    return model


def greedy_unsupported_reason(vocabulary: Vocabulary) -> str | None:
    """Why merging by score gives other ids than the tokenizer's algorithm inside a piece; None if they are equal."""
    if vocabulary.steps is not None:
        return "merging by score differs: the tokenizer normalises or splits text in other ways"
    if vocabulary.added_tokens:
        return "merging by score differs: the tokenizer finds some tokens before it merges"
    if unmerged(vocabulary):
        return "merging by score differs: the tokenizer looks up complete pieces, and merges do not make all of them"
    match vocabulary.algorithm:
        case "wordpiece":
            return "merging by score differs: the tokenizer takes the longest entry from the left, whatever its score"
        case "viterbi":
            return "merging by score differs: the tokenizer takes the split with the best sum of scores"
        case "lookup" if vocabulary.pattern != CHARACTERS and any(
            len(vocabulary.tokens[i]) > 1 for i in vocabulary.text_ids
        ):
            return "merging by score differs: the tokenizer looks up complete pieces, and merges make few of them"
    texts = {vocabulary.tokens[i] for i in vocabulary.text_ids}
    for name in (
        token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind not in TEXT_KINDS
    ):
        if any(name[:i] in texts and name[i:] in texts for i in range(1, len(name))):
            return f"merging by score differs: two text tokens make the name of the control token {name.decode()}"
    return None
