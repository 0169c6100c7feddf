"""tokenizer.tiktoken: a token in base64 and its rank on each line, as OpenAI publishes its tokenizers.

    IQ== 0
    Ig== 1

The lines have neither the split pattern nor the special tokens; these are in a file of the same name with `.json`
appended: `{"name": …, "pattern": …, "special_tokens": {name: id}}`. Without it, published ranks are recognised by their
content, or by the file's name.
"""

import base64
import binascii
import hashlib
import json
import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatmill.tokenizer.encoding.backends import (
    encoding_name,
    from_ranks,
    ranks_of,
    special_tokens_of,
    tiktoken_unsupported_reason,
    to_tiktoken_encoding,
)
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

EMPTY = b"="  # how the ranks of Whisper write a token without bytes, which no text gives
_ENDOFTEXT = "<|endoftext|>"
_FILL = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_QWEN = (_ENDOFTEXT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{k}|>" for k in range(205)))
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
    *("<|eot_id|>", "<|python_tag|>", "<|image|>", *(f"<|reserved_special_token_{k}|>" for k in range(2, 246))),
)
PUBLISHED = {  # pattern and special tokens of ranks that are published without them
    "gpt2": ("gpt2", {_ENDOFTEXT: 50256}),
    "r50k_base": ("gpt2", {_ENDOFTEXT: 50256}),
    "p50k_base": ("gpt2", {_ENDOFTEXT: 50256}),
    "cl100k_base": (
        "cl100k",
        {_ENDOFTEXT: 100257, "<|endofprompt|>": 100276} | {name: 100258 + k for k, name in enumerate(_FILL)},
    ),
    "o200k_base": ("o200k", {_ENDOFTEXT: 199999, "<|endofprompt|>": 200018}),
    "qwen": ("qwen2", {name: 151643 + k for k, name in enumerate(_QWEN)}),
    "llama3": ("llama3", {name: 128000 + k for k, name in enumerate(_LLAMA3)}),
    "whisper_multilingual": ("gpt2", {_ENDOFTEXT: 50257, "<|startoftranscript|>": 50258}),  # others differ by version
}
_NAMES_BY_DIGEST = {  # of `_digest`
    "22f185846c3da697": "r50k_base",
    "6acf7ccc24168898": "p50k_base",
    "74248f4aec6cbe44": "cl100k_base",
    "6d12c35070eec146": "o200k_base",
    "18fe0daf01fe5557": "qwen",
    "96691ae4a7281d8a": "llama3",
    "b830e11fee141665": "whisper_multilingual",
}


def description_file(file: Path) -> Path:
    """The file with the pattern and the special tokens of a file of ranks."""
    return file.with_name(f"{file.name}.json")


def write_tiktoken(vocabulary: Vocabulary, file: Path) -> None:
    """Write ranks and description; `read_tiktoken` is the inverse. Raises ValueError if tiktoken cannot express it."""
    reason = tiktoken_unsupported_reason(vocabulary)
    if reason is not None:
        raise ValueError(reason)
    ranks = ranks_of(vocabulary)
    file.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), i) for token, i in ranks.items()))
    description = {
        "name": encoding_name(vocabulary),
        "pattern": vocabulary.pattern,
        "special_tokens": special_tokens_of(vocabulary),
    }
    content = json.dumps(description, ensure_ascii=False, indent=1)
    description_file(file).write_text(content + "\n", encoding="utf-8", newline="\n")


def read_tiktoken(file: Path) -> Vocabulary:
    """The vocabulary in a file of ranks. Raises ValueError with the line that is invalid."""
    ranks = read_ranks(file)
    name, pattern, special = read_description(file, ranks)
    try:
        return from_ranks(name, pattern, ranks, special)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def read_ranks(file: Path) -> dict[bytes, int]:
    """The tokens in a file of ranks. Raises ValueError with the line that is invalid."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank = line.split(b" ")
            token = b"" if encoded == EMPTY else base64.b64decode(encoded, validate=True)
            if (not token and encoded != EMPTY) or token in ranks or not rank.isdigit():
                raise ValueError("an empty token, a duplicate, or no rank")
            ranks[token] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{file}:{number}: not a token in base64 and its rank: {line[:60]!r}: {error}") from error
    return ranks


def _digest(ranks: dict[bytes, int]) -> str:
    lines = (b"%d %s\n" % (i, token.hex().encode()) for token, i in sorted(ranks.items(), key=lambda item: item[1]))
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16]


def read_description(file: Path, ranks: dict[bytes, int]) -> tuple[str, str, dict[str, int]]:
    """The name, split pattern and special tokens of ranks. Raises ValueError if they are unknown."""
    description = description_file(file)
    if not description.exists():
        published = _NAMES_BY_DIGEST.get(_digest(ranks), file.name.split(".")[0])
        if published not in PUBLISHED:
            raise ValueError(
                f"{file}: ranks have no split pattern, and these are not published ones: write {description.name} "
                f"beside it, with name, pattern and special_tokens (as for {', '.join(PUBLISHED)})"
            )
        pattern, special = PUBLISHED[published]
        return published, PATTERNS[pattern], special
    try:
        content = json.loads(description.read_bytes())
        name, pattern, special = content["name"], content["pattern"], content["special_tokens"]
        if not (isinstance(name, str) and isinstance(pattern, str) and all(type(i) is int for i in special.values())):
            raise TypeError("a value has the wrong type")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{description}: expected name, pattern and special_tokens: {error}") from error
    return name, pattern, special


# tokenizer.pkl: a pickled `tiktoken.Encoding`, as nanochat loads it.

PROTOCOL = 4
_CONSTANTS = {"SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BININT", "BININT1", "BININT2"}
_CLASS = object()  # stands for tiktoken.Encoding
_FIELDS = {"name": str, "pat_str": str, "mergeable_ranks": dict, "special_tokens": dict}


@dataclass(eq=False)
class _EncodingStub:
    state: Any = None


def write_tiktoken_pickle(vocabulary: Vocabulary, file: Path) -> None:
    """Write the pickle; `read_tiktoken_pickle` is the inverse. Raises ValueError if tiktoken cannot express it."""
    file.write_bytes(pickle.dumps(to_tiktoken_encoding(vocabulary), protocol=PROTOCOL))


def read_tiktoken_pickle(file: Path) -> Vocabulary:
    """The vocabulary in a pickled `tiktoken.Encoding`, without unpickling it."""
    try:
        state = _interpret(file.read_bytes())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a pickled tiktoken.Encoding: {error}") from error
    try:
        return from_ranks(state["name"], state["pat_str"], state["mergeable_ranks"], state["special_tokens"])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _interpret(data: bytes) -> dict[str, Any]:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, position in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case name if name in _CONSTANTS:
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                marks.append(len(stack))
            case "SETITEMS":
                items = _pop(stack, marks.pop())
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "SETITEM":
                key, value = _pop(stack, -2)
                stack[-1].update([(key, value)])
            case "GLOBAL":
                stack.append(_find_class(str(argument)))
            case "STACK_GLOBAL":
                stack.append(_find_class(" ".join(_pop(stack, -2))))
            case "NEWOBJ":
                if _pop(stack, -2) != [_CLASS, ()]:
                    raise ValueError(f"an object of another class at byte {position}")
                stack.append(_EncodingStub())
            case "BUILD":
                (state,) = _pop(stack, -1)
                stack[-1].state = state
            case _:
                raise ValueError(f"unexpected opcode {opcode.name} at byte {position}")
    end = (position or 0) + len(pickle.STOP)
    if end < len(data):
        raise ValueError(f"{len(data) - end} bytes after its end")
    (result,) = stack
    return _checked(result.state)


def _pop(stack: list[Any], place: int) -> list[Any]:
    items = stack[place:]
    del stack[place:]
    return items


def _find_class(name: str) -> object:
    if name != "tiktoken.core Encoding":
        raise ValueError(f"it imports {name.replace(' ', '.')}")
    return _CLASS


def _checked(state: Any) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise ValueError(
            f"its state is the name {state!r:.40} without ranks" if isinstance(state, str) else "it has no state"
        )
    if {key: type(value) for key, value in state.items()} != _FIELDS:
        raise ValueError(f"its state has {', '.join(map(repr, state))[:80]}; expected {', '.join(_FIELDS)}")
    for field, expected in (("mergeable_ranks", bytes), ("special_tokens", str)):
        if not all(type(key) is expected and type(value) is int for key, value in state[field].items()):
            raise ValueError(f"{field}: expected a mapping from {expected.__name__} to int")
    return state
