r"""OpenAI's and Hugging Face's `messages`, in JSON lines or a JSON array.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

Content is text, or a list of `{"type": "text", "text": …}`; a row may have a `system` text beside `messages`. Calls in
`tool_calls` and results of the role `tool` become tool use inside the assistant's turn. A call of the function
`calculator` is stored as its `expression`, any other call as JSON. Of `tools` the names are kept, as a declaration
(chatmill.conversation.declare_tools). Reasoning and descriptions of tools are left out. `weight: 0` of a message
leaves it untrained. Rows of the form `{"prompt": …, "completion": …}`, and rows that are
lists of messages, are read as well.
"""

from typing import Any

from chatmill.conversation import Conversation
from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import USUAL_NAMES
from chatmill.datasets.formats.table import TableReader, UnknownRoleError, reader_of

_MESSAGES = reader_of(messages="messages", system="system", tools="tools")
_LISTS = reader_of(messages=".")
_PAIRS = reader_of(prompt="prompt", response="completion")


def reader(row: Any) -> TableReader:
    """The reader of a row, which has messages or a pair, or is a list of messages."""
    if isinstance(row, list) and row:
        return _LISTS
    return _PAIRS if isinstance(row, dict) and "messages" not in row and "prompt" in row else _MESSAGES


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    try:
        return [turn.message for turn in reader(row).turns(row)[0]]
    except UnknownRoleError as error:
        names = [name for names in USUAL_NAMES.values() for name in names[:1]]
        expected = ", ".join(names)
        raise UnusableRowError(error.reason, f"unknown role {error.names[0]!r}: expected one of {expected}") from error
