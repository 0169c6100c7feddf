"""Assigns groups of conversations to train, validation and test by a hash of their names."""

import hashlib
from typing import Literal

SplitName = Literal["train", "validation", "test"]
HELD_BACK = "held-back/"  # groups with this prefix are always in test


def split_position(group: str) -> float:
    """A number in [0, 1), the hash of the group's name; 0 for held-back groups.

    A conversation that belongs to several groups takes the one with the least position, so that it is in test if any
    of them is.
    """
    if group.startswith(HELD_BACK):
        return 0.0
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=6).digest(), "big") / 2**48


def assign_split(group: str, *, validation_share: float, test_share: float) -> SplitName:
    """The split of a group; it does not depend on other data, so added data moves no group."""
    point = split_position(group)
    if point < test_share:
        return "test"
    return "validation" if point < test_share + validation_share else "train"
