"""Errors that a user can cause, and the machine's limits: each is one line, never a traceback."""

USER_ERRORS = (OSError, ValueError, MemoryError)


def error_line(error: OSError | ValueError | MemoryError) -> str:
    """What went wrong, as one line that begins with the place."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror.lower()}"
    return " ".join(str(error).split()) or "out of memory"
