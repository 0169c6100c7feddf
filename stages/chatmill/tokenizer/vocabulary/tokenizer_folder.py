"""The tokenizer's folder: what stands in it, and what every tokenizer gets beside its text tokens.

tokenizer.json            canonical
chatmill_tokenizer.json   type, algorithm, pattern, control tokens, sizes, fingerprint
tokenizer.model           of SentencePiece types
manifest.json
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from chatmill.conversation.chatml import CONTROL_TOKENS
from chatmill.pipeline.manifest import check_manifest, write_manifest
from chatmill.tokenizer.vocabulary.sentencepiece_model import sentencepiece_unsupported_reason, to_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece, read_tokenizer_json, write_tokenizer_json
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


def check_special_tokens(names: Sequence[str]) -> None:
    """Raise ValueError unless each is `<|name|>`, once, and not chatmill's own."""
    for name in names:
        if not re.fullmatch(r"<\|\w+\|>", name):
            raise ValueError(f"special token {name!r} must look like <|name|>")
        if name in CONTROL_TOKENS or name.startswith(UNUSED_PREFIX):
            raise ValueError(f"special token {name!r} is chatmill's own: choose another name")
    if len(set(names)) < len(names):
        raise ValueError("a special token is named twice")


def add_special_tokens(vocabulary: Vocabulary, special_tokens: Sequence[str]) -> Vocabulary:
    """The vocabulary with the control tokens that it lacks, and unused ids up to a multiple of 64.

    They take the ids that are unused, then new ones: no id changes its meaning. SentencePiece has an id for unknown
    text, which never occurs here: where it has no name of its own it is an unused one, so there is one.
    """
    tokens, kinds, scores = list(vocabulary.tokens), list(vocabulary.kinds), list(vocabulary.scores)
    spare = [i for i, kind in enumerate(kinds) if kind == Kind.UNUSED]
    controls = [name for name in (*CONTROL_TOKENS, *special_tokens) if name not in vocabulary.special]
    for i, control in zip(spare, controls, strict=False):
        tokens[i], kinds[i] = control.encode(), Kind.CONTROL
    texts = {id_to_piece(vocabulary, i) for i in vocabulary.text_ids}
    if taken := [name for name in controls if name in texts]:
        raise ValueError(f"the control token {taken[0]} is a token of text in it: use another tokenizer")
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
    """Write a complete vocabulary; `read_folder` is the inverse."""
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
    """The vocabulary of a folder. Raises ValueError where a file is missing, damaged, or from another tokenizer."""
    check_manifest(folder)
    file = folder / DESCRIPTION
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        type, expected = description["type"], description["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: not chatmill's description of a tokenizer: {error}") from error
    vocabulary = read_tokenizer_json(folder / TOKENIZER_JSON, type)
    if vocabulary.fingerprint != expected:
        raise ValueError(f"{folder / TOKENIZER_JSON} is not the tokenizer that {file} describes: make the folder anew")
    return vocabulary
