"""tokenizer.llama2c.bin: the records that C engines read in sequence, as in karpathy/llama2.c's tokenizer.py.

Little-endian, as the bytes lie:

    u32 length of the longest token
    for each id in order:  f32 score   u32 length   the token's bytes

It names neither the number of tokens nor how text is cut: its readers know both from the model, so it has no inverse.
Inside a piece they start from single bytes (char and sentencepiece: from characters, or their bytes where no token is
one) and join the two neighbours whose joint token has the best score, until no two have one.
"""

import struct
from pathlib import Path

from chatmill.tokenizer.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary import Kind, Vocabulary

RECORD = struct.Struct("<fI")  # what precedes a token's bytes


def records(vocabulary: Vocabulary) -> list[bytes]:
    """The record of each token, in id order."""
    return [
        RECORD.pack(score, len(token)) + token
        for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)
    ]


def longest_token(vocabulary: Vocabulary) -> int:
    """The length of the longest token in bytes: what a reader must have room for."""
    return max(map(len, vocabulary.tokens))


def write_llama2c(vocabulary: Vocabulary, file: Path) -> None:
    """Write the records."""
    file.write_bytes(struct.pack("<I", longest_token(vocabulary)) + b"".join(records(vocabulary)))


def greedy_refusal(vocabulary: Vocabulary) -> str | None:
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
