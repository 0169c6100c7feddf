"""Alpaca's instructions, in JSON lines or a JSON array; the input follows the instruction after a blank line.

{"instruction": "Name the colour.", "input": "The sky at noon.", "output": "Blue."}
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.item import text_of
from chatmill.datasets.formats.turns import pair


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises Unusable."""
    instruction, answer = text_of(row, "instruction"), text_of(row, "output")
    material = text_of(row, "input") if row.get("input") else ""
    return pair(f"{instruction}\n\n{material}" if material else instruction, answer)
