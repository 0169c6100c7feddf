"""Plain text: a line is a turn, a blank line ends the conversation; who opens is the user.

Is the library open on Sunday?
No, it opens on Monday at nine.
"""

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.turns import alternate


def conversation(block: str) -> Conversation:
    """The conversation of one block of lines."""
    return alternate(block.split("\n"))
