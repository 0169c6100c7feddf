"""What processes do with shards in tests."""

import os
import signal
import threading
from pathlib import Path

import numpy as np


def squared(number):
    return number * number


def array(number):
    return np.arange(number)


def killed_once(number, folder):
    """Its square; the process of every third number is killed when it first comes."""
    marker = Path(folder, str(number))
    if number % 3 == 0 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(folder, "calls").open("a") as calls:
        calls.write(f"{number}\n")
    return number * number


def killed(number):
    os.kill(os.getpid(), signal.SIGKILL)


def refused(number):
    raise ValueError(f"{number} is no number")


class LockedError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class PairError(Exception):
    """An error that can be pickled, but not read from that."""

    def __init__(self, number, reason):
        super().__init__(f"{number} {reason}")


def failed_by_lock(number):
    raise LockedError(f"{number} is locked")


def failed_by_pair(number):
    raise PairError(number, "is locked")
