"""ShareGPT's conversations, in JSON lines or a JSON array.

    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}

`function_call` and `observation` become tool use inside the assistant's turn; a row may have a `system` text beside
`conversations`.
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.example import UnusableRowError, list_of, text_of
from chatmill.datasets.formats.turns import Step, StepKind, check_turn_count, join_tools

_KINDS: dict[str, StepKind] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "call",
    "observation": "output",
}


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    steps: list[Step] = []
    turns = list_of(row, "conversations")
    check_turn_count(len(turns))
    if isinstance(row.get("system"), str) and row["system"]:
        steps.append(("system", row["system"]))
    for turn in turns:
        sender = text_of(turn, "from")
        if sender not in _KINDS:
            raise UnusableRowError(
                "unknown_role", f"unknown sender {sender[:40]!r}: expected one of {', '.join(_KINDS)}"
            )
        steps.append((_KINDS[sender], text_of(turn, "value")))
    return join_tools(steps)
