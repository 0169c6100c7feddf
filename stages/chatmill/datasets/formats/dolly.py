"""Dolly's instructions, in JSON lines; the context follows the instruction after a blank line.

{"instruction": "When did it open?", "context": "It opened in 1901.", "response": "In 1901."}
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.item import text_of
from chatmill.datasets.formats.turns import pair


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises Unusable."""
    instruction, answer = text_of(row, "instruction"), text_of(row, "response")
    context = text_of(row, "context") if row.get("context") else ""
    return pair(f"{instruction}\n\n{context}" if context else instruction, answer)
