"""Alpaca's instructions, in JSON lines or a JSON array; the input follows the instruction after a blank line.

{"instruction": "Name the colour.", "input": "The sky at noon.", "output": "Blue."}
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.turns import instruction_pair


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    return instruction_pair(row, "input", "output")
