"""Vocabularies in the formats before tokenizer.json: a vocabulary with a file of merges, and WordPiece's list.

encoder.json, vocab.json   {"!": 0, …, "Ġthe": 262}
vocab.bpe, merges.txt      beside it, one merge per line: `Ġ t`
vocab.txt                  one entry per line: `the`, `##ing`, `[CLS]`
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import regex

from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_json import byte_level_entry
from chatmill.tokenizer.vocabulary.tokenizer_json_reader import from_json, reject_duplicate_keys
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MERGES_FILES = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
VOCAB_TXT = "vocab.txt"
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def merges_file_of(file: Path) -> Path | None:
    """The file of merges beside a vocabulary, such as x-merges.txt of x-vocab.json; None if there is none."""
    names = [MERGES_FILES[file.name]] if file.name in MERGES_FILES else []
    if file.suffix == ".json" and "vocab" in file.stem:
        names += [f"{file.stem.replace('vocab', 'merges')}{suffix}" for suffix in (".txt", ".bpe")]
    return next((file.with_name(name) for name in names if file.with_name(name).is_file()), None)


def vocabulary_file_of(file: Path) -> Path | None:
    """The vocabulary beside a file of merges; None if it is another file, or stands alone."""
    others = (file.with_name(name) for name in (*MERGES_FILES, file.stem.replace("merges", "vocab") + ".json"))
    return next((other for other in others if other.is_file() and merges_file_of(other) == file), None)


def read_vocab_and_merges(file: Path) -> Vocabulary:
    """The byte-level BPE of an encoder.json or vocab.json and its merges, with the split pattern of GPT-2.

    An entry that no merge makes is a control token. Raises ValueError with the line that is invalid, and for a token
    that GPT-2's pattern would split: neither file says which pattern belongs to it.
    """
    merges_file = merges_file_of(file)
    assert merges_file is not None, "the format was detected by it"
    try:
        vocab = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicate_keys)
        merges = _read_merges(merges_file)
        merged = set(map("".join, merges))
        _check_pattern(merged)
        controls = [{"id": i, "content": name} for name, i in vocab.items() if len(name) > 1 and name not in merged]
        model = {"type": "BPE", "vocab": vocab, "merges": merges}
        pre_tokenizer = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        steps = {"normalizer": None, "pre_tokenizer": pre_tokenizer}
        vocabulary = from_json({"model": model, "added_tokens": controls} | steps)
        if len(controls) < 2:
            return vocabulary
        return replace(vocabulary, special_handling=json.dumps({"assumed": [token["content"] for token in controls]}))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file}: not a vocabulary with merges in {merges_file.name}: {error!r:.200}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _check_pattern(merged: set[str]) -> None:
    """Raise ValueError for a token of which GPT-2's pattern makes several pieces."""
    pattern = regex.compile(PATTERNS["gpt2"])
    for piece in sorted(merged):
        try:
            text = byte_level_entry(piece)[0].decode()
        except UnicodeDecodeError:  # a part of a character
            continue
        if not pattern.fullmatch(text, partial=True):
            raise ValueError(
                f"its token {text!r} never comes about with GPT-2's split pattern, so it has another one, which its "
                "files do not name: use its tokenizer.json"
            )


def _read_merges(file: Path) -> list[list[str]]:
    merges = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        parts = line.rstrip("\r").split(" ")
        if not line.rstrip("\r") or (number == 1 and line.startswith("#version")):
            continue
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{file.name}:{number}: not two tokens separated by a space: {line[:60]!r}")
        merges.append(parts)
    return merges


def read_vocab_txt(file: Path) -> Vocabulary:
    """The WordPiece of a vocab.txt, with BERT's normalisation, which lowercases text if no entry has a capital.

    Raises ValueError with the line that is invalid.
    """
    vocab: dict[str, int] = {}
    try:
        lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
    for number, line in enumerate(lines, start=1):
        entry = line.rstrip("\r")
        if not entry or entry in vocab or entry != entry.strip():
            raise ValueError(f"{file}:{number}: not a vocabulary entry, or a duplicate: {line[:60]!r}")
        vocab[entry] = number - 1
    missing = [name for name in _BERT if name not in vocab]
    if missing:
        raise ValueError(f"{file}: no entry {missing[0]}: not a BERT vocabulary")
    try:
        return from_json(_bert(vocab, lowercase=has_no_capitals(vocab)))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def has_no_capitals(entries: Iterable[str]) -> bool:
    """Whether no entry has a capital, but for special tokens; then text is lowercased."""
    plain = (entry for entry in entries if entry not in _BERT and not entry.startswith("[unused"))
    return all(entry == entry.lower() for entry in plain)


def _bert(vocab: dict[str, int], *, lowercase: bool) -> dict[str, Any]:
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    around.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    ends = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    limits = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {
        "added_tokens": [{"id": vocab[name], "content": name} for name in _BERT],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        | {"strip_accents": None, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around + second}
        | {"special_tokens": ends},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab} | limits,
    }
