"""Guesses of texts: conversations whose turns a mark separates, or prose."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import mean

from chatmill.app.look.guess import MIN_SHARE, Guess, NoGuessError, name_speakers, speaker_of
from chatmill.datasets.formats import chats

SEPARATORS = ("__eou__", "<|endofturn|>", "<|eot|>", "[SEP]", "<sep>", "</s>", "<EOT>", " EOS ", "|||", "\t")
_MARK = re.compile(
    r"(?m)^[ \t]*(?:#{1,6} ?)?[*_]{0,2}([^\W\d_][\w .-]{0,24}?)[ \t]*(?::[*_]{0,2}|[*_]{1,2}[ \t]*:)(?=\s)"
)
_TEMPLATE = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>|<\|user\|>|### Instruction:")
_INLINE = re.compile(r"(?<![\w])(User|Human|Assistant|Bot|GPT|AI|Customer|Agent)[ \t]*:")
_ENDS = (".", "!", "?", "…", "。", "！", "？", '"', "”", "»", ")", ":", ";", "*")


def text_guess(texts: Sequence[str], column: str, *, lines: bool = False) -> Guess | None:
    """The guess of a column of texts in which names of speakers begin the turns, or a separator stands between them.

    With `lines` each line may be a turn.
    """
    if names := speakers_in(texts):
        guess = Guess(columns={"messages": column})
        orders = [[name for name in _MARK.findall(text) if name in names] for text in texts]
        name_speakers(guess, [order for order in orders if order])
        return guess
    all_lines = [line for text in texts for line in text.split("\n")]
    if separator := separator_in(texts, *(["\n"] if lines and _ended(all_lines) >= 0.5 else [])):
        return _separated(column, separator)
    return None


def _separated(column: str, separator: str) -> Guess:
    doubt = f"turn_separator: {separator!r} is taken to separate turns, and the first one to be the user's"
    return Guess(columns={"messages": column}, turn_separator=separator, doubts=[doubt])


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


def separator_in(texts: Sequence[str], *others: str) -> str | None:
    """The separator that stands in nearly all texts."""
    separators = (one for one in (*SEPARATORS, *others) if mean(one in text.strip() for text in texts) >= MIN_SHARE)
    return next(separators, None)


def check_template(texts: Sequence[str]) -> None:
    """Raise NoGuessError for texts that a chat template rendered."""
    found = [match[0] for text in texts if (match := _TEMPLATE.search(text))]
    if found and len(found) > 0.5 * len(texts):
        raise NoGuessError(
            f"the texts hold the marks of a chat template ({found[0]}): write the messages as they were before it"
        )
    inline = [{speaker_of(name) for name in _INLINE.findall(text)} for text in texts]
    if sum({"user", "assistant"} <= speakers for speakers in inline) > 0.5 * len(texts):
        raise NoGuessError(
            "the texts hold names of speakers within a line, as '### Human: … ### Assistant: …': write each turn on a "
            "line of its own"
        )


def text_file(paragraphs: Sequence[str], *, markdown: bool) -> Guess:
    """The guess of the paragraphs of a text file. Raises NoGuessError."""
    whole = chats.HEADINGS.sub("", "\n\n".join(paragraphs))
    first = _MARK.match(whole)
    is_chat = first is not None and speaker_of(first[1]) is not None
    if is_chat and (names := speakers_in(paragraphs) or speakers_in([whole])):
        return _markers(names)
    lines = [line for paragraph in paragraphs for line in paragraph.split("\n") if line.strip()]
    if not markdown:
        if separator := separator_in(lines):
            return Guess(format="dailydialog") if separator == "__eou__" else _separated(".", separator)
        if names := speakers_in(paragraphs):
            return _markers(names)
        check_template(paragraphs)
        if sum(map(str.isalpha, "".join(lines))) <= 0.3 * sum(map(len, lines)):
            raise NoGuessError("its lines hold numbers, not text")
        if _are_turns(paragraphs, lines):
            doubt = "each line is taken to be a turn, a blank line to end the conversation: prose is format: documents"
            return Guess(format="text", doubts=[doubt])
    doubt = "it has no marks of speakers: it is taken to be prose, and each file to be a document"
    return Guess(format="documents", doubts=[doubt])


def _markers(names: Sequence[str]) -> Guess:
    """The format of a text file whose turns the names begin. Raises NoGuessError for names that it does not know."""
    if {*names} <= chats.ROLES.keys():
        return Guess(format="markers")
    raise NoGuessError(
        f"its speakers are named {', '.join(sorted(names))}: the format markers reads Human:, User:, Assistant: and "
        'System: in a text file; for others write JSON lines, {"text": …} for each conversation'
    )


def _ended(lines: Sequence[str]) -> float:
    """The share of the lines that end as a sentence does; wrapped lines do not."""
    return mean(line.rstrip().endswith(_ENDS) for line in lines)


def _are_turns(paragraphs: Sequence[str], lines: Sequence[str]) -> bool:
    several = mean("\n" in paragraph for paragraph in paragraphs) >= MIN_SHARE
    headings = mean(line.startswith(("#", "- ", "* ", "|", ">")) for line in lines) > 0.1
    return several and len(paragraphs) > 1 and _ended(lines) >= 0.6 and not headings
