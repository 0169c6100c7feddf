"""What of a chat can be changed while it goes on: how tokens are chosen, and where an answer ends."""

import re
from dataclasses import fields, replace
from math import inf
from typing import Any

from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import Sampling

MAX_THREADS = 1024
EMPTY = "-"  # what takes a text away
SAMPLING_SETTINGS = [field.name for field in fields(Sampling)]
INTEGER_SETTINGS = ("max_tokens", *(field.name for field in fields(Sampling) if isinstance(field.default, int)))
SETTINGS = (*SAMPLING_SETTINGS, "max_tokens", "stop")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def format_setting(session: ChatSession, name: str) -> str:
    """The value of a setting as people read it. Raises ValueError where there is none of that name."""
    _check(name)
    if name == "stop":
        return ", ".join(map(repr, session.stop)) or EMPTY
    return str(getattr(session.sampling if name in SAMPLING_SETTINGS else session, name))


def change_setting(session: ChatSession, name: str, text: str) -> None:
    """Set what is between answers to be set. Raises ValueError where it may not have that value."""
    _check(name)
    if name == "stop":
        session.stop = () if text == EMPTY else (unescaped(text),)
        return
    try:
        value: Any = int(text) if name in INTEGER_SETTINGS else float(text)
    except ValueError as error:
        expected = "a whole number" if name in INTEGER_SETTINGS else "a number"
        raise ValueError(f"{name} {text!r}: expected {expected}") from error
    if name == "max_tokens":
        session.max_tokens = check_positive(name, value)
    else:
        session.sampling = replace(session.sampling, **{name: value})


def check_positive(name: str, value: int, most: float = inf) -> int:
    """The value. Raises ValueError where it is less than one, or above `most`."""
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value}: expected 1 {'or more' if most == inf else f'to {most}'}")
    return value


def unescaped(text: str) -> str:
    r"""Text in which `\n`, `\t` and `\\` are a newline, a tab and a backslash."""
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def _check(name: str) -> None:
    if name not in SETTINGS:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")
