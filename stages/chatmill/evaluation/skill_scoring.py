"""Decides whether an answer to a question of a skill is correct."""

import re
from typing import Any

MAX_SENTENCES = 8


def is_correct(skill: dict[str, Any], reply: str) -> bool:
    """Whether a reply is correct according to the `skill` of its record.

    With `answers`, only these replies are correct, apart from surrounding white space. With `contains`, a reply is
    correct if it contains these words and consists of one to MAX_SENTENCES complete sentences.
    """
    reply = reply.strip()
    if "answers" in skill:
        return reply in skill["answers"]
    has_words = all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply) for word in skill["contains"])
    return has_words and _is_sentences(reply)


def _is_sentences(text: str) -> bool:
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text)]
    return 1 <= len(ends) <= MAX_SENTENCES and ends[-1] == len(text)
