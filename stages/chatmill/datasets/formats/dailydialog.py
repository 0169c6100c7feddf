"""DailyDialog's text: a dialogue a line, every turn ended by ` __eou__`; who opens is the user.

    Did the post come ? __eou__ Not yet . __eou__

The one space on each side of `__eou__` belongs to the format; all other text stays as it is.
"""

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.turns import alternate

_END = "__eou__"


def conversation(line: str) -> Conversation:
    """The dialogue of one line."""
    turns = f" {line}".split(_END)
    if not turns[-1].strip():
        turns.pop()
    return alternate([turn.removeprefix(" ").removesuffix(" ") for turn in turns])
