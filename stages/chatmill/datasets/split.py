"""Assigns conversations to train, validation and test by what they ask.

The group of a conversation is one of

    questions/2f1c…          named by what is asked before the first answer, whatever the source is called
    skills/units/99 km m     named by the format that generated the conversation
    columns/77ab…            named by the dataset's column of groups
    documents/5b02…          that of a document and of the other parts of its file
    test/questions/2f1c…     as above, on a fixed side: train, validation or test

The side of a group that is not fixed follows from a hash of its name, so that added data moves no group.
"""

import hashlib
import re
from typing import Literal, get_args

SplitName = Literal["train", "validation", "test"]
_SIDES: dict[str, SplitName] = {side: side for side in get_args(SplitName)}
_BY_QUESTION, _BY_COLUMN, _BY_TEXT = "questions/", "columns/", "documents/"
_USER_HEADER, _ASSISTANT_HEADER = "<|im_start|>user\n", "<|im_start|>assistant\n"  # never occur in content
_DECLARED = "Tools: calculator"
_DECLARATION = re.compile(rf"(?:<\|im_start\|>system\n{_DECLARED}(?=<\|im_end\|>\n)|(?<=\n){_DECLARED}\n)")


def fixed_side(group: str) -> SplitName | None:
    side, slash, _ = group.partition("/")
    return _SIDES.get(side) if slash else None


def _without_side(group: str) -> str:
    return group.partition("/")[2] if fixed_side(group) else group


def on_side(group: str, side: SplitName) -> str:
    return f"{side}/{_without_side(group)}"


def is_generated(group: str) -> bool:
    """Whether the format named the group, as those that generate conversations and read documents do."""
    return not _without_side(group).startswith((_BY_QUESTION, _BY_COLUMN))


def column_group(value: str) -> str:
    return f"{_BY_COLUMN}{hashlib.blake2b(value.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def is_by_column(group: str) -> bool:
    return _without_side(group).startswith(_BY_COLUMN)


def question_group(text: str) -> str:
    """The group of a rendered conversation whose format names none: its messages before the first answer.

    Case, spaces, final punctuation, the declaration of tools, and a message of the assistant before the first one of
    the user make no difference.
    """
    begin = text.index(_USER_HEADER)  # what the assistant says before it is no answer
    end = text.index(_ASSISTANT_HEADER, begin)
    opening = text.find(_ASSISTANT_HEADER, 0, begin)
    return _BY_QUESTION + _question_hash(text[: opening if opening >= 0 else begin] + text[begin:end])


def document_group(text: str) -> str:
    """The group of a document, or of all parts of a file, by its content."""
    return f"{_BY_TEXT}{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def question_of(group: str, text: str) -> str:
    """What records of all sources that ask the same share: of a generated conversation the last question counts.

    A document shares nothing but its text.
    """
    if text and "<|" not in text:  # a document
        return document_group(text)
    if is_generated(group):
        return _BY_QUESTION + _question_hash(text[text.rindex(_USER_HEADER) : text.rindex(_ASSISTANT_HEADER)])
    if is_by_column(group):
        return question_group(text)
    return _without_side(group)


def _question_hash(messages: str) -> str:
    if _DECLARED in messages:
        messages = _DECLARATION.sub("", messages)
    words = messages.replace("<|im_end|>", " ").casefold().split()
    return hashlib.blake2b(" ".join(words).rstrip(".?! ").encode(), digest_size=8).hexdigest()


def split_position(group: str) -> float:
    """A number in [0, 1), the hash of the group's name; 0 for a group on a fixed side.

    A conversation that belongs to several groups takes the one with the least position, so that it is in test if any
    of them is.
    """
    if fixed_side(group):
        return 0.0
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=6).digest(), "big") / 2**48


def assign_split(group: str, *, validation_share: float, test_share: float) -> SplitName:
    """The split of a group; it does not depend on other data, so added data moves no group."""
    if side := fixed_side(group):
        return side
    point = split_position(group)
    if point < test_share:
        return "test"
    return "validation" if point < test_share + validation_share else "train"


# The states of the records that mix reads: one byte each in a file.

SPLITS: tuple[SplitName, ...] = ("test", "validation", "train")
TRAIN, DUPLICATE, LEAKED, NEAR_DUPLICATE, NEAR_LEAKED = 2, 3, 4, 5, 6
STATES = NEAR_LEAKED + 1
