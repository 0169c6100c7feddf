"""Plain text: each line is a turn, a blank line ends the conversation, and the first speaker is the user.

Is the library open on Sunday?
No, it opens on Monday at nine.
"""

from chatmill.conversation import Conversation
from chatmill.datasets.formats.example import alternate, split_turns


def conversation(paragraph: str) -> Conversation:
    return alternate(split_turns(paragraph, "\n"))
