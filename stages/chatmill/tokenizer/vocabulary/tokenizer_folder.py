"""The tokenizer's folder: its files, and the control and unused tokens that every tokenizer gets.

tokenizer.json            canonical
chatmill_tokenizer.json   type, algorithm, pattern, control tokens, sizes, fingerprint
tokenizer.model           for SentencePiece types
manifest.json
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from chatmill.conversation import CONTROL_TOKENS
from chatmill.pipeline.manifest import check_manifest, read_json, write_manifest
from chatmill.tokenizer.vocabulary.sentencepiece_model import (
    read_sentencepiece_model,
    sentencepiece_unsupported_reason,
    to_model_proto,
)
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece, write_tokenizer_json
from chatmill.tokenizer.vocabulary.tokenizer_json_reader import read_tokenizer_json
from chatmill.tokenizer.vocabulary.vocabulary import (
    NO_RANK,
    UNUSED_PREFIX,
    VOCAB_SIZE_MULTIPLE,
    Kind,
    Vocabulary,
    unused_names,
)

TOKENIZER_JSON, DESCRIPTION, SENTENCEPIECE_MODEL = "tokenizer.json", "chatmill_tokenizer.json", "tokenizer.model"
FORMAT = 1
MAX_DESCRIPTION_BYTES = 1 << 22


def check_special_tokens(names: Sequence[str]) -> None:
    """Raise ValueError unless each name has the form `<|name|>`, is not chatmill's own, and occurs once."""
    for name in names:
        if not re.fullmatch(r"<\|\w+\|>", name):
            raise ValueError(f"special token {name!r}: expected the form <|name|>")
        if name in CONTROL_TOKENS or name.startswith(UNUSED_PREFIX):
            raise ValueError(f"special token {name!r}: expected another name, since this one is chatmill's own")
    if len(set(names)) < len(names):
        raise ValueError(f"special tokens {', '.join(names)}: expected each once")


def add_special_tokens(vocabulary: Vocabulary, special_tokens: Sequence[str]) -> Vocabulary:
    """The vocabulary with any missing control tokens added, and unused ids up to a multiple of 64.

    Control tokens take the unused ids first, then new ones; no other id changes. SentencePiece needs an id for unknown
    text, which never occurs here: if the vocabulary has none, an unused id serves as one, so at least one is left.
    """
    tokens, kinds, scores = list(vocabulary.tokens), list(vocabulary.kinds), list(vocabulary.scores)
    spare = [i for i, kind in enumerate(kinds) if kind == Kind.UNUSED]
    controls = [name for name in (*CONTROL_TOKENS, *special_tokens) if name not in vocabulary.special]
    for i, control in zip(spare, controls, strict=False):
        tokens[i], kinds[i] = control.encode(), Kind.CONTROL
    texts = {id_to_piece(vocabulary, i) for i in vocabulary.text_ids}
    if taken := [name for name in controls if name in texts]:
        raise ValueError(f"the control token {taken[0]} is already one of its text tokens: use another tokenizer")
    added = controls[len(spare) :]
    needed = int(vocabulary.spelling == "marked" and Kind.UNKNOWN not in kinds and len(spare) <= len(controls))
    num_unused = needed + -(len(tokens) + len(added) + needed) % VOCAB_SIZE_MULTIPLE
    return replace(
        vocabulary,
        tokens=(*tokens, *(name.encode() for name in added), *islice(unused_names(vocabulary.tokens), num_unused)),
        kinds=(*kinds, *[Kind.CONTROL] * len(added), *[Kind.UNUSED] * num_unused),
        scores=(*scores, *[NO_RANK] * (len(added) + num_unused)),
    )


def write_folder(vocabulary: Vocabulary, folder: Path) -> None:
    """Write a vocabulary that has its control tokens; `read_folder` is the inverse."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer_json(vocabulary, folder / TOKENIZER_JSON)
    description = {
        "format": FORMAT,
        "type": vocabulary.type,
        "algorithm": vocabulary.algorithm,
        "pattern": vocabulary.pattern,
        "controls": vocabulary.special,
        "num_text": vocabulary.num_text,
        "vocab_size": len(vocabulary.tokens),
        "fingerprint": vocabulary.fingerprint,
    }
    text = json.dumps(description, ensure_ascii=False, indent=1) + "\n"
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    if sentencepiece_unsupported_reason(vocabulary) is None:
        (folder / SENTENCEPIECE_MODEL).write_bytes(to_model_proto(vocabulary))
    write_manifest(folder, kind="tokenizer", fingerprint=vocabulary.fingerprint)


def read_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a folder. Raises ValueError if a file is missing, damaged, or from another tokenizer."""
    check_manifest(folder)
    file = folder / DESCRIPTION
    try:
        description = read_json(file, MAX_DESCRIPTION_BYTES)
        type, expected = description["type"], description["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: not chatmill's description of a tokenizer: {error}") from error
    vocabulary = read_tokenizer_json(folder / TOKENIZER_JSON, type)
    model = folder / SENTENCEPIECE_MODEL
    if vocabulary.fingerprint != expected and model.exists():  # tokenizer.json does not name user-defined pieces
        vocabulary = read_sentencepiece_model(model)
    if vocabulary.fingerprint != expected:
        raise ValueError(f"{folder / TOKENIZER_JSON} is not the tokenizer that {file} describes: make the folder anew")
    return vocabulary
