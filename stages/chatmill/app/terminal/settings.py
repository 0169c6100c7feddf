"""Settings that can be changed during a chat: how tokens are chosen, and where an answer ends."""

import re
from dataclasses import fields, replace
from math import inf
from typing import Any

from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import Sampling

MAX_THREADS = 1024
EMPTY = "-"  # as an argument it removes a text
SAMPLING_SETTINGS = [field.name for field in fields(Sampling)]
INTEGER_SETTINGS = ("max_tokens", *(field.name for field in fields(Sampling) if isinstance(field.default, int)))
SETTINGS = (*SAMPLING_SETTINGS, "max_tokens", "stop")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def format_setting(session: ChatSession, name: str) -> str:
    """The value of a setting as text. Raises ValueError for an unknown name."""
    _check(name)
    if name == "stop":
        return ", ".join(map(repr, session.stop)) or EMPTY
    return str(getattr(session.sampling if name in SAMPLING_SETTINGS else session, name))


def change_setting(session: ChatSession, name: str, text: str) -> None:
    """Change a setting. Raises ValueError for an unknown name or a value out of range."""
    _check(name)
    if name == "stop":
        session.stop = () if text == EMPTY else (unescaped(text),)
        return
    try:
        value: Any = int(text) if name in INTEGER_SETTINGS else float(text)
    except ValueError as error:
        expected = "an integer" if name in INTEGER_SETTINGS else "a number"
        raise ValueError(f"{name}: expected {expected}, got {text!r}") from error
    if name == "max_tokens":
        session.max_tokens = check_positive(name, value)
    else:
        session.sampling = replace(session.sampling, **{name: value})


def check_positive(name: str, value: int, maximum: float = inf) -> int:
    """The value. Raises ValueError where it is less than 1, or above `maximum`."""
    if not 1 <= value <= maximum:
        raise ValueError(f"{name}: expected 1 {'or more' if maximum == inf else f'to {maximum}'}, got {value}")
    return value


def unescaped(text: str) -> str:
    r"""Replace `\n`, `\t` and `\\` by a newline, a tab and a backslash."""
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def _check(name: str) -> None:
    if name not in SETTINGS:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")
