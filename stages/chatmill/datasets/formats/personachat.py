"""Tables of dialogues, comma-separated, or tab-separated in a .tsv; column names are case-insensitive.

    Persona,chat                                  Question	Answer
    i like tea.,"hi , how are you ?               Good morning	Good morning!
    great , i just had tea ."

Each line of `chat` is a turn, the first speaker is the user, and `Persona` is the system message. A table with the
columns `Question` and `Answer` gives pairs.
"""

from typing import Any

from chatmill.conversation import Conversation
from chatmill.datasets.formats.example import UnusableRowError, alternate, describe_value, question_answer, split_turns


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    if "chat" in row:
        return alternate(split_turns(row["chat"].removesuffix("\n"), "\n"), row.get("persona", ""))
    if "question" in row and "answer" in row:
        return question_answer(row["question"], row["answer"])
    raise UnusableRowError(
        "missing_field", f"expected a column 'chat', or 'question' and 'answer', got {describe_value(row)}"
    )
