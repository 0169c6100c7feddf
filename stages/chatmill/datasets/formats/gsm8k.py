r"""GSM8K's problems, in JSON lines; its calculator annotations become tool use.

    {"question": "Half of 48?", "answer": "Half is 48/2 = <<48/2=24>>24.\n#### 24"}

`<<48/2=24>>` becomes a call of `48/2` with the output `24`; all other text is unchanged, the last line `#### 24`
included.
"""

import re
from typing import Any

from chatmill.conversation import Conversation, Message, Part
from chatmill.datasets.formats.example import UnusableRowError, check_turn_count, text_of

_CALL = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
_NUMBER = re.compile(r"-?\d*\.?\d+|-?\d+\.")


def conversation(row: Any) -> Conversation:
    """The problem and its solution. Raises UnusableRowError."""
    return [
        Message.from_text("user", text_of(row, "question")),
        Message("assistant", tuple(_parts(text_of(row, "answer")))),
    ]


def _parts(answer: str) -> list[Part]:
    check_turn_count(answer.count("<<"))
    pieces = _CALL.split(answer)  # text, expression, result, text, expression, result, …, text
    parts = []
    for index, piece in enumerate(pieces):
        if index % 3 == 2 and not _NUMBER.fullmatch(piece):
            raise UnusableRowError("bad_call", f"the result of <<{pieces[index - 1]}={piece}>> is not a number")
        if piece or index % 3:
            parts.append(Part(("text", "call", "output")[index % 3], piece))
    return parts
