"""Numbers formatted for the terminal."""


def format_size(num_bytes: int) -> str:
    """A number of bytes: 812 bytes, 7.2 MB, 15.1 GB."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 1e6 else 2 if num_bytes < 1e9 else 3
    return f"{num_bytes / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def format_duration(seconds: float) -> str:
    """A duration: 12 ms, 3.4 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def plural(number: int, noun: str) -> str:
    """A number with its noun: 1 token, 2 tokens."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
