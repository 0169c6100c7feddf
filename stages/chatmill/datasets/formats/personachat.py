"""Tables of dialogues: comma-separated, or tab-separated in a .tsv. The case of column names does not matter.

    Persona,chat                                  Question	Answer
    i like tea.,"hi , how are you ?               Good morning	Good morning!
    great , i just had tea ."

The lines of `chat` are turns, who opens is the user, and what `Persona` holds is the system message. A table of
`Question` and `Answer` gives pairs.
"""

from typing import Any

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats.example import UnusableRowError, describe_value
from chatmill.datasets.formats.turns import alternate, question_answer


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises Unusable."""
    if "chat" in row:
        return alternate(row["chat"].removesuffix("\n").split("\n"), row.get("persona", ""))
    if "question" in row and "answer" in row:
        return question_answer(row["question"], row["answer"])
    raise UnusableRowError("missing_field", f"no column 'chat', nor 'question' and 'answer', in {describe_value(row)}")
