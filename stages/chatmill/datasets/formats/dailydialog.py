"""DailyDialog's text: one dialogue per line, each turn ended by ` __eou__`; the first speaker is the user.

    Did the post come ? __eou__ Not yet . __eou__

One space on each side of `__eou__` belongs to the format; all other text is unchanged.
"""

from chatmill.conversation import Conversation
from chatmill.datasets.formats.example import alternate, split_turns

_END = "__eou__"


def conversation(line: str) -> Conversation:
    """The dialogue of one line."""
    turns = split_turns(f" {line}", _END)
    if not turns[-1].strip():
        turns.pop()
    return alternate([turn.removeprefix(" ").removesuffix(" ") for turn in turns])
