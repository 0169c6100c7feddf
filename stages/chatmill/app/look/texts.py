"""Guesses of rows that are texts: conversations whose turns a mark separates, or prose."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import mean

from chatmill.app.look.guess import Guess, NoGuessError
from chatmill.app.look.speakers import name_speakers, speaker_of
from chatmill.datasets.formats import markers
from chatmill.datasets.formats.mapping import USUAL_NAMES

SEPARATORS = ("__eou__", "<|endofturn|>", "<|eot|>", "[SEP]", "<sep>", "</s>", "<EOT>", " EOS ", "|||", "\t")
_MARK = re.compile(r"(?m)^[ \t]*(?:### ?)?([^\W\d_][\w .-]{0,24}?)[ \t]*:(?=\s)")
_TEMPLATE = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>|<\|user\|>|### Instruction:")
_INLINE = re.compile(r"(?<![\w])(User|Human|Assistant|Bot|GPT|AI|Customer|Agent)[ \t]*:")
_OPENING = re.compile(rf"[ \t]*(?:### ?)?(?:{'|'.join(markers.ROLES)}):")
_ENDS = (".", "!", "?", "…", "。", "！", "？", '"', "”", "»", ")", ":", ";", "*")
MIN_MARKED = 0.8  # of the texts


def marked(texts: Sequence[str]) -> Guess | None:
    """The guess of texts in which names of speakers at the start of a line begin a turn, without their column."""
    marks = [_MARK.findall(text) for text in texts]
    in_texts = Counter(name for names in marks for name in {*names})
    often = {name for name, count in in_texts.items() if count >= MIN_MARKED * len(texts)}
    speakers = [name for name in in_texts if name in often or speaker_of(name) in ("user", "assistant", "system")]
    kinds = {speaker_of(name) for name in speakers}
    known = {"user", "assistant"} <= kinds
    share = mean(len({*names} & {*speakers}) >= 2 for names in marks) if marks else 0.0
    if len(speakers) < 2 or share < (0.5 if known else MIN_MARKED):
        return None
    if not known and len(often) < 2:
        return None
    names = speakers if known else sorted(often)
    guess = Guess(columns={"messages": "."})
    orders = [[name for name in found if name in names] for found in marks]
    guess.roles, guess.first, guess.doubts = name_speakers([order for order in orders if order])
    if {*names} <= markers.ROLES.keys() and all(_OPENING.match(text.lstrip("\n")) for text in texts[:20]):
        guess.format = "markers"
    return guess


def separated(texts: Sequence[str], *, lines: bool = False) -> Guess | None:
    """The guess of texts with a separator between the turns, without their column; with `lines` each line is one."""
    for separator in (*SEPARATORS, "\n") if lines and not _is_wrapped("\n".join(texts).split("\n")) else SEPARATORS:
        turns = [text.strip().count(separator) for text in texts]
        if mean(count > 0 for count in turns) >= MIN_MARKED:
            doubt = f"turn_separator: {separator!r} is taken to separate turns, and the first one to be the user's"
            return Guess(columns={"messages": "."}, turn_separator=separator, doubts=[doubt])
    return None


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
    lines = [line for paragraph in paragraphs for line in paragraph.split("\n") if line.strip()]
    if not markdown:
        if mean("__eou__" in line for line in lines) >= MIN_MARKED:
            return Guess(format="dailydialog")
        if (guess := marked(paragraphs)) is not None:
            return _markers(guess, paragraphs)
        if (guess := separated(lines)) is not None:
            return guess
        check_template(paragraphs)
        if not _are_words(lines):
            raise NoGuessError("its lines hold numbers, not text")
        if _are_turns(paragraphs):
            doubts = [
                "each line is taken to be a turn, a blank line to end the conversation: prose is format: documents"
            ]
            return Guess(format="text", doubts=doubts)
    doubts = ["it has no marks of speakers: it is taken to be prose, and each file to be a document"]
    return Guess(format="documents", doubts=doubts)


def _markers(guess: Guess, paragraphs: Sequence[str]) -> Guess:
    """The format of marked paragraphs. Raises NoGuessError for names that it does not know."""
    names = {name for text in paragraphs for name in _MARK.findall(text)}
    speakers = {name for name in names if name in {one for found in guess.roles.values() for one in found}}
    if guess.format == "markers":
        return Guess(format="markers")
    usual = {name for found in USUAL_NAMES.values() for name in found}
    shown = sorted(speakers or {name for name in names if name.lower() in usual})
    raise NoGuessError(
        f"its speakers are named {', '.join(shown)}: the format markers reads Human:, User:, Assistant: and System: in "
        'a text file; for others write JSON lines, {"text": …} for each conversation'
    )


def _are_words(lines: Sequence[str]) -> bool:
    letters = sum(character.isalpha() for line in lines for character in line)
    return letters > 0.3 * sum(map(len, lines))


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether lines break within sentences, as prose of a fixed width does."""
    return mean(line.rstrip().endswith(_ENDS) for line in lines) < 0.5


def _are_turns(paragraphs: Sequence[str]) -> bool:
    """Whether most paragraphs are several short lines that are sentences."""
    counts = [paragraph.count("\n") + 1 for paragraph in paragraphs]
    lines = [line for paragraph in paragraphs for line in paragraph.split("\n")]
    several = mean(count >= 2 for count in counts) >= MIN_MARKED
    ended = mean(line.rstrip().endswith(_ENDS) for line in lines) >= 0.6
    headings = mean(line.startswith(("#", "- ", "* ", "|", ">")) for line in lines) > 0.1
    return several and len(counts) > 1 and ended and not headings
