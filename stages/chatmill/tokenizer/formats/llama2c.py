"""tokenizer.llama2c.bin: the records that C engines read in sequence, as in karpathy/llama2.c's tokenizer.py.

Little-endian, as the bytes lie:

    u32 length of the longest token
    for each id in order:  f32 score   u32 length   the token's bytes

It names neither the number of tokens nor how text is cut: its readers know both from the model, so it has no inverse.
`read_llama2c` reads the files that were made from a SentencePiece model, as llama2.c's own are.

Inside a piece they start from single bytes (char and sentencepiece: from characters, or their bytes where no token is
one) and join the two neighbours whose joint token has the best score, until no two have one.
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
from chatmill.tokenizer.vocabulary.vocabulary import MAX_TOKEN_BYTES, Kind, Vocabulary

RECORD_HEADER = struct.Struct("<fI")  # what precedes a token's bytes
UNKNOWN_ID, CONTROL_NAMES, BYTE_IDS = 0, ("<s>", "</s>"), range(3, 259)  # ids in files made from a SentencePiece model


def token_records(vocabulary: Vocabulary) -> list[bytes]:
    """The record of each token, in id order."""
    return [
        RECORD_HEADER.pack(score, len(token)) + token
        for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)
    ]


def longest_token(vocabulary: Vocabulary) -> int:
    """The length of the longest token in bytes: what a reader must have room for."""
    return max(map(len, vocabulary.tokens))


def write_llama2c(vocabulary: Vocabulary, file: Path) -> None:
    """Write the records."""
    file.write_bytes(struct.pack("<I", longest_token(vocabulary)) + b"".join(token_records(vocabulary)))


def read_llama2c(file: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary of a model with so many tokens, in a file made from a SentencePiece model.

    Text begins with a space, its tokens are joined by the best score, and characters that are none fall back on bytes.
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
            raise ValueError(f"it holds {number}")
        score, length = RECORD_HEADER.unpack_from(data, place)
        place += RECORD_HEADER.size + length
        if length > MAX_TOKEN_BYTES or place > len(data):
            raise ValueError(f"its token {number} is cut, or too long")
        text = data[place - length : place].decode()
        if not math.isfinite(score) or (number not in BYTE_IDS and len(text) > 1 and score in seen):
            raise ValueError(f"its token {number}, {text!r:.80}, has the score {score}, as another one or no number")
        seen |= {score} if number > BYTE_IDS[-1] and len(text) > 1 else set()
        yield score, text
    if place != len(data):
        raise ValueError("it holds more")


def _as_model(entries: list[tuple[float, str]]) -> ModelProto:
    """The SentencePiece model that the records were made from: there, `<s>` stands between newlines."""
    if [text for _, text in entries[BYTE_IDS.start : BYTE_IDS.stop]] != [f"<0x{byte:02X}>" for byte in range(256)]:
        raise ValueError("its tokens 3 to 258 are not the bytes")
    spec = to_normalizer_spec(None)
    spec.add_dummy_prefix = True
    model = ModelProto(normalizer_spec=spec)
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = TrainerSpec.BPE, True
    types = {UNKNOWN_ID: "UNKNOWN"} | dict.fromkeys((1, 2), "CONTROL") | dict.fromkeys(BYTE_IDS, "BYTE")
    for index, (score, text) in enumerate(entries):
        if index in (1, 2) and text.strip() != CONTROL_NAMES[index - 1]:
            raise ValueError(f"its token {index} is {text!r}, and not {CONTROL_NAMES[index - 1]}")
        piece = text.strip() if index < BYTE_IDS.start else text.replace(" ", METASPACE)
        kind = ModelProto.SentencePiece.Type.Value(types.get(index, "NORMAL"))
        model.pieces.add(piece=piece, score=score, type=kind)
    return model


def greedy_unsupported_reason(vocabulary: Vocabulary) -> str | None:
    """Why joining by score gives other ids inside a piece than the right algorithm; None where they are equal."""
    if vocabulary.steps is not None:
        return "joining by score differs: the tokenizer changes the text first, or cuts it in ways of its own"
    match vocabulary.algorithm:
        case "wordpiece":
            return "joining by score differs: the longest entry from the left is right, whatever its score"
        case "viterbi":
            return "joining by score differs: the cut with the best sum of scores is right"
        case "lookup" if vocabulary.pattern != CHARACTERS and any(
            len(vocabulary.tokens[i]) > 1 for i in vocabulary.text_ids
        ):
            return "joining by score differs: a piece is looked up whole, and few entries are joints of shorter ones"
    texts = {vocabulary.tokens[i] for i in vocabulary.text_ids}
    for name in (
        token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind >= Kind.CONTROL
    ):
        if any(name[:i] in texts and name[i:] in texts for i in range(1, len(name))):
            return f"joining by score differs: two text tokens make the name of the control token {name.decode()}"
    return None
