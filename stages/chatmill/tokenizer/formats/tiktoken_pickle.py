"""tokenizer.pkl: a pickled `tiktoken.Encoding`, as nanochat loads it.

Loading a pickle can run any code, so it is never loaded here. Only the opcodes of a pickled encoding are interpreted,
and they build nothing but strings, numbers and dictionaries. `pickle.Unpickler` would not do, even with a `find_class`
that finds nothing: nine bytes (LONG_BINPUT) make it allocate 32 GB.
"""

import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatmill.tokenizer.encoding.tiktoken_ranks import from_ranks, to_tiktoken_encoding
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

PROTOCOL = 4
_CONSTANTS = {"SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BININT", "BININT1", "BININT2"}
_CLASS = object()  # stands for tiktoken.Encoding
_FIELDS = {"name": str, "pat_str": str, "mergeable_ranks": dict, "special_tokens": dict}


@dataclass(eq=False)
class _EncodingStub:
    """A placeholder for the pickled encoding."""

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
    """The four values of the encoding that a pickle describes."""
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
    """The items from `place` on, taken off the stack."""
    items = stack[place:]
    del stack[place:]
    return items


def _find_class(name: str) -> object:
    if name != "tiktoken.core Encoding":
        raise ValueError(f"it imports {name.replace(' ', '.')}")
    return _CLASS


def _checked(state: Any) -> dict[str, Any]:
    """The state, with all types checked."""
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
