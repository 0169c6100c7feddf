"""Text without control characters."""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Replace control characters other than tabs and newlines by visible symbols, so that a terminal ignores them."""
    return _CONTROLS.sub(lambda match: _mark(ord(match[0])), text)


def _mark(code: int) -> str:
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"
