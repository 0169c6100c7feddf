"""The files of tiktoken, and vocabularies in the formats before tokenizer.json.

encoder.json, vocab.json   {"!": 0, …, "Ġthe": 262}
vocab.bpe, merges.txt      beside it, one merge per line: `Ġ t`
vocab.txt                  WordPiece's list, one entry per line: `the`, `##ing`, `[CLS]`
tokenizer.tiktoken         a token in base64 and its rank on each line, as OpenAI publishes its tokenizers
tokenizer.pkl              a pickled `tiktoken.Encoding`, as nanochat loads it; it is interpreted, never unpickled
"""

import base64
import hashlib
import json
import pickle
import pickletools
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import regex
import tiktoken
from tokenizers import BertWordPieceTokenizer
from tokenizers.processors import TemplateProcessing

from chatmill.pipeline.manifest import read_json
from chatmill.tokenizer.encoding.backends import from_ranks, special_tokens_of, to_tiktoken_encoding
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_json import from_json
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary, byte_level_entry

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

    An entry that no merge makes is a control token. Raises ValueError for damaged files, and for a token that GPT-2's
    pattern would split: neither file says which pattern belongs to it.
    """
    merges_file = merges_file_of(file)
    assert merges_file is not None, "the format was detected by it"
    vocab, merges = read_json(file), []
    for number, line in enumerate(merges_file.read_text(encoding="utf-8").split("\n"), start=1):
        if line and not (number == 1 and line.startswith("#version")):
            merges.append(line.split(" "))
            if len(merges[-1]) != 2 or not all(merges[-1]):
                raise ValueError(f"{merges_file.name}:{number}: not two tokens separated by a space: {line[:60]!r}")
    merged = set(map("".join, merges))
    _check_pattern(merged)
    controls = [{"id": i, "content": name} for name, i in vocab.items() if len(name) > 1 and name not in merged]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    pre_tokenizer = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    vocabulary = from_json({"model": model, "added_tokens": controls, "pre_tokenizer": pre_tokenizer})
    if len(controls) < 2:
        return vocabulary
    assumed = [token["content"] for token in sorted(controls, key=itemgetter("id"))]
    return replace(vocabulary, special_handling=json.dumps({"assumed": assumed}))


def _check_pattern(merged: set[str]) -> None:
    """Raise ValueError for a token of which GPT-2's pattern makes several pieces."""
    pattern = regex.compile(PATTERNS["gpt2"])
    for piece in sorted(merged):
        text = byte_level_entry(piece)[0].decode(errors="ignore")
        if not pattern.fullmatch(text, partial=True):
            raise ValueError(f"GPT-2's split pattern never gives its token {text!r}: use its tokenizer.json")


def read_vocab_txt(file: Path) -> Vocabulary:
    """The WordPiece of a vocab.txt, with BERT's normalisation, which lowercases text if no entry has a capital.

    Raises ValueError with the line that is invalid.
    """
    vocab: dict[str, int] = {}
    for i, line in enumerate(file.read_text(encoding="utf-8").removesuffix("\n").split("\n")):
        entry = line.rstrip("\r")
        if not entry or entry in vocab or entry != entry.strip():
            raise ValueError(f"{file}:{i + 1}: not a vocabulary entry, or a duplicate: {line[:60]!r}")
        vocab[entry] = i
    if missing := [name for name in _BERT if name not in vocab]:
        raise ValueError(f"{file}: no entry {missing[0]}: not a BERT vocabulary")
    bert = BertWordPieceTokenizer(vocab, lowercase=has_no_capitals(vocab))
    around = [(name, vocab[name]) for name in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    bert.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=around)
    return from_json(json.loads(bert.to_str()))


def has_no_capitals(entries: Iterable[str]) -> bool:
    """Whether no entry has a capital, but for special tokens; then text is lowercased."""
    plain = (entry for entry in entries if entry not in _BERT and not entry.startswith("[unused"))
    return all(entry == entry.lower() for entry in plain)


# tokenizer.tiktoken

EMPTY = b"="  # how the ranks of Whisper write a token without bytes, which no text gives
_ENDOFTEXT = "<|endoftext|>"
_FILL = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_QWEN = (_ENDOFTEXT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{k}|>" for k in range(205)))
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
    *("<|eot_id|>", "<|python_tag|>", "<|image|>", *(f"<|reserved_special_token_{k}|>" for k in range(2, 246))),
)
_CL100K = {_ENDOFTEXT: 100257, "<|endofprompt|>": 100276} | {name: 100258 + k for k, name in enumerate(_FILL)}
_WHISPER = {_ENDOFTEXT: 50257, "<|startoftranscript|>": 50258}  # others differ by version
PUBLISHED = {  # `_digest`, pattern and special tokens of ranks that are published without these
    "gpt2": ("22f185846c3da697", "gpt2", {_ENDOFTEXT: 50256}),
    "r50k_base": ("22f185846c3da697", "gpt2", {_ENDOFTEXT: 50256}),
    "p50k_base": ("6acf7ccc24168898", "gpt2", {_ENDOFTEXT: 50256}),
    "cl100k_base": ("74248f4aec6cbe44", "cl100k", _CL100K),
    "o200k_base": ("6d12c35070eec146", "o200k", {_ENDOFTEXT: 199999, "<|endofprompt|>": 200018}),
    "qwen": ("18fe0daf01fe5557", "qwen2", {name: 151643 + k for k, name in enumerate(_QWEN)}),
    "llama3": ("96691ae4a7281d8a", "llama3", {name: 128000 + k for k, name in enumerate(_LLAMA3)}),
    "whisper_multilingual": ("b830e11fee141665", "gpt2", _WHISPER),
}


def description_file(file: Path) -> Path:
    """The file with the pattern and the special tokens of a file of ranks."""
    return file.with_name(f"{file.name}.json")


def write_tiktoken(vocabulary: Vocabulary, file: Path) -> None:
    """Write ranks and description; `read_tiktoken` is the inverse. Raises ValueError if tiktoken cannot express it."""
    encoding = to_tiktoken_encoding(vocabulary)
    ranks = vocabulary.text_tokens.items()
    file.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), i) for token, i in ranks))
    special = special_tokens_of(vocabulary)
    description = {"name": encoding.name, "pattern": vocabulary.pattern, "special_tokens": special}
    content = json.dumps(description, ensure_ascii=False, indent=1)
    description_file(file).write_text(content + "\n", encoding="utf-8", newline="\n")


def read_tiktoken(file: Path) -> Vocabulary:
    """The vocabulary in a file of ranks. Raises ValueError with the line that is invalid."""
    ranks = read_ranks(file)
    name, pattern, special = read_description(file, ranks)
    return from_ranks(name, pattern, ranks, special)


def read_ranks(file: Path) -> dict[bytes, int]:
    """The tokens in a file of ranks. Raises ValueError with the line that is invalid."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank = line.split(b" ")
            token = b"" if encoded == EMPTY else base64.b64decode(encoded, validate=True)
            if (not token and encoded != EMPTY) or token in ranks:
                raise ValueError("an empty token, or a duplicate")
            ranks[token] = int(rank)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: not a token in base64 and its rank: {line[:60]!r}: {error}") from error
    return ranks


def _digest(ranks: dict[bytes, int]) -> str:
    lines = (b"%d %s\n" % (i, token.hex().encode()) for token, i in sorted(ranks.items(), key=lambda item: item[1]))
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16]


def read_description(file: Path, ranks: dict[bytes, int]) -> tuple[str, str, dict[str, int]]:
    """The name, split pattern and special tokens of ranks. Raises ValueError if they are unknown."""
    description = description_file(file)
    if description.exists():
        match read_json(description):
            case {"name": str(name), "pattern": str(pattern), "special_tokens": dict(special)} if all(
                type(i) is int for i in special.values()
            ):
                return name, pattern, special
        raise ValueError(f"{description}: expected name, pattern and special_tokens, with an id for each name")
    by_digest = {digest: name for name, (digest, _, _) in PUBLISHED.items()}
    published = by_digest.get(_digest(ranks), file.name.split(".")[0])
    if published not in PUBLISHED:
        raise ValueError(
            f"{file}: ranks have no split pattern, and these are not published ones: write {description.name} "
            f"beside it, with name, pattern and special_tokens (as for {', '.join(PUBLISHED)})"
        )
    _, pattern, special = PUBLISHED[published]
    return published, PATTERNS[pattern], special


# tokenizer.pkl

_FIELDS = {"name": str, "pat_str": str, "mergeable_ranks": dict, "special_tokens": dict}


def write_tiktoken_pickle(vocabulary: Vocabulary, file: Path) -> None:
    """Write the pickle; `read_tiktoken_pickle` is the inverse. Raises ValueError if tiktoken cannot express it."""
    file.write_bytes(pickle.dumps(to_tiktoken_encoding(vocabulary), protocol=4))


def read_tiktoken_pickle(file: Path) -> Vocabulary:
    """The vocabulary in a pickled `tiktoken.Encoding`, without unpickling it."""
    try:
        state = _interpret(file.read_bytes())
        if {key: type(value) for key, value in state.items()} != _FIELDS:
            raise ValueError(f"its state is not that of one: expected {', '.join(_FIELDS)}")
        for field, expected in (("mergeable_ranks", bytes), ("special_tokens", str)):
            if not all(type(key) is expected and type(value) is int for key, value in state[field].items()):
                raise ValueError(f"{field}: expected a mapping from {expected.__name__} to int")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a pickled tiktoken.Encoding: {error}") from error
    return from_ranks(state["name"], state["pat_str"], state["mergeable_ranks"], state["special_tokens"])


def _interpret(data: bytes) -> Any:
    """The state of the pickled encoding. Raises ValueError for an opcode that such a pickle does not need."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop(place: int) -> list[Any]:
        items = stack[place:]
        del stack[place:]
        return items

    for opcode, argument, position in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "SHORT_BINUNICODE" | "BINUNICODE" | "SHORT_BINBYTES" | "BINBYTES" | "BININT" | "BININT1" | "BININT2":
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                marks.append(len(stack))
            case "SETITEMS":
                items = pop(marks.pop())
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "SETITEM":
                key, value = pop(-2)
                stack[-1][key] = value
            case "STACK_GLOBAL":
                name = ".".join(pop(-2))
                if name != "tiktoken.core.Encoding":
                    raise ValueError(f"it imports {name}")
                stack.append(tiktoken.Encoding)
            case "NEWOBJ":
                if pop(-2) != [tiktoken.Encoding, ()]:
                    raise ValueError(f"an object of another class at byte {position}")
                stack.append(None)
            case "BUILD":  # the encoding becomes its state
                stack[-2:] = [stack[-1]]
            case _:
                raise ValueError(f"unexpected opcode {opcode.name} at byte {position}")
    if (position or 0) + len(pickle.STOP) < len(data):
        raise ValueError(f"bytes after its end at {position}")
    (state,) = stack
    return state
