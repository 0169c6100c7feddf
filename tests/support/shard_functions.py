"""What processes do with shards in tests."""

import os
import signal
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
