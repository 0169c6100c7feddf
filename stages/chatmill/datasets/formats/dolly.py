"""Dolly's instructions, in JSON lines; the context follows the instruction after a blank line.

{"instruction": "When did it open?", "context": "It opened in 1901.", "response": "In 1901."}
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.turns import instruction_pair


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    return instruction_pair(row, "context", "response")
