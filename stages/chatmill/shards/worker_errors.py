"""Errors on their way from a worker to the process that waits for its results."""

import pickle
import traceback

KILLED = "{}: {} processes that worked on it were killed, as for want of memory: {}"
LESS_AT_ONCE = "set CHATMILL_WORKERS to fewer"


def sendable(error: Exception) -> Exception:
    """An error with its traceback as a note; a RuntimeError with its type and text if it cannot be pickled."""
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the error's own methods raise
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(trace)
    return error
