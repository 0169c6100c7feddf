"""Guesses of text files: conversations with names of speakers, or prose."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import mean

from chatmill.app.look.guess import MIN_SHARE, Guess, NoGuessError, speaker_of
from chatmill.datasets.formats import chats

_MARK = re.compile(
    r"(?m)^[ \t]*(?:#{1,6} ?)?[*_]{0,2}([^\W\d_][\w .-]{0,24}?)[ \t]*(?::[*_]{0,2}|[*_]{1,2}[ \t]*:)(?=\s)"
)
_RENDERED = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>|<\|user\|>|\[\|Human\|\]|### Instruction:|"
    r"^(?:User|Human|Assistant|Bot|Customer|Agent):|\b(?:Human|User):.*\b(?:Assistant|Bot|GPT|AI):"
)
_ENDS = (".", "!", "?", "…", "。", "！", "？", '"', "”", "»", ")", ":", ";", "*")


def speakers_in(texts: Sequence[str]) -> list[str]:
    """The names at the start of lines by which turns begin: those that are known, or those in nearly all texts."""
    marks = [_MARK.findall(text) for text in texts]
    in_texts = Counter(name for names in marks for name in {*names})
    often = {name for name, count in in_texts.items() if count >= MIN_SHARE * len(texts)}
    names = [name for name in in_texts if name in often or speaker_of(name) in ("user", "assistant", "system")]
    known = {"user", "assistant"} <= {speaker_of(name) for name in names}
    share = mean(len({*found} & {*names}) >= 2 for found in marks) if marks else 0.0
    if len(names if known else often) < 2 or share < (0.5 if known else MIN_SHARE):
        return []
    return names if known else sorted(often)


def check_rendered(texts: Sequence[str]) -> None:
    """Raise NoGuessError for texts with marks of turns that no format reads, as those of a chat template."""
    found = [match[0] for text in texts if (match := _RENDERED.search(text))]
    if len(found) > 0.5 * len(texts):
        raise NoGuessError(
            f"the texts hold the marks of a chat template, or names of speakers ({found[0][:40]}): write messages with "
            "a role and a content, or one text with each turn on a line of its own, after a name and a colon"
        )


def text_file(paragraphs: Sequence[str], *, markdown: bool) -> Guess:
    """The guess of the paragraphs of a text file. Raises NoGuessError."""
    whole = chats.HEADINGS.sub("", "\n\n".join(paragraphs))
    lines = [line for line in whole.split("\n") if line.strip()]
    first = _MARK.match(whole)
    is_chat = first is not None and speaker_of(first[1]) is not None
    if not markdown and lines and mean("__eou__" in line for line in lines) >= MIN_SHARE:
        return Guess(format="dailydialog")
    names = speakers_in(paragraphs) or (speakers_in([whole]) if is_chat else [])
    if names and (is_chat or not markdown):
        if {*names} <= chats.ROLES.keys():
            return Guess(format="markers")
        raise NoGuessError(
            f"its speakers are named {', '.join(sorted(names))}: the format markers reads Human:, User:, Assistant: "
            'and System: in a text file; for others write JSON lines, {"text": …} for each conversation'
        )
    if not markdown:
        check_rendered(paragraphs)
        if sum(map(str.isalpha, "".join(lines))) <= 0.3 * sum(map(len, lines)):
            raise NoGuessError("its lines hold numbers, not text")
        several = mean("\n" in paragraph for paragraph in paragraphs)
        ended = mean(line.rstrip().endswith(_ENDS) for line in lines)  # wrapped lines do not
        if len(paragraphs) > 1 and several >= MIN_SHARE and ended >= 0.6:
            doubt = "each line is taken to be a turn, a blank line to end the conversation: prose is format: documents"
            return Guess(format="text", doubts=[doubt])
    doubt = "it has no marks of speakers: it is taken to be prose, and each file to be a document"
    return Guess(format="documents", doubts=[doubt])
