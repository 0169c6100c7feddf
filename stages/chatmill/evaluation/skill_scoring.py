"""How an answer that is right or wrong is scored."""

import re
from typing import Any

MAX_SENTENCES = 8


def is_correct(skill: dict[str, Any], reply: str) -> bool:
    """Whether the reply is right, by the `skill` of its record.

    `answers` are the only replies that are right, but for white space around them; with `contains`, any text of one to
    eight whole sentences is right that has these words in it.
    """
    reply = reply.strip()
    if "answers" in skill:
        return reply in skill["answers"]
    has_words = all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply) for word in skill["contains"])
    return has_words and _is_sentences(reply)


def _is_sentences(text: str) -> bool:
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text)]
    return 1 <= len(ends) <= MAX_SENTENCES and ends[-1] == len(text)
