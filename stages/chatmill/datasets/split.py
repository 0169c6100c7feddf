"""Which side of the split a group of conversations falls on, from its name alone."""

import hashlib
from typing import Literal

SplitName = Literal["train", "validation", "test"]
HELD_BACK = "held-back/"  # groups with this prefix are always tested on, never trained on


def split_position(group: str) -> float:
    """A point in [0, 1), fixed by the group's name; held-back groups are at 0.

    A conversation made of several things takes the group with the least position, so that it is on the test side if
    any of them is.
    """
    if group.startswith(HELD_BACK):
        return 0.0
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=6).digest(), "big") / 2**48


def assign_split(group: str, *, validation_share: float, test_share: float) -> SplitName:
    """The side of the split: adding data moves nothing that was there before."""
    point = split_position(group)
    if point < test_share:
        return "test"
    return "validation" if point < test_share + validation_share else "train"
