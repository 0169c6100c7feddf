"""The states of the records that mix reads: one byte each in a file.

A record has the number of its split, or of the reason for which it is dropped.
"""

from chatmill.datasets.split import SplitName

SPLITS: tuple[SplitName, ...] = ("test", "validation", "train")
TRAIN, DUPLICATE, LEAKED, NEAR_DUPLICATE, NEAR_LEAKED = 2, 3, 4, 5, 6
STATES = NEAR_LEAKED + 1
