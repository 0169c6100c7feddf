"""Errors that a user or the machine's limits can cause: each is reported as one line, without a traceback."""

USER_ERRORS = (OSError, ValueError, MemoryError)


def error_line(error: OSError | ValueError | MemoryError) -> str:
    """The message of an error as one line that begins with the place."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror.lower()}"
    return " ".join(str(error).split()) or "out of memory"
