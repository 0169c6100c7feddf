"""Text that a terminal does not act upon."""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Text that a terminal does not act upon: control characters are shown, but for tabs and newlines."""
    return _CONTROLS.sub(lambda match: _mark(ord(match[0])), text)


def _mark(code: int) -> str:
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"
