"""The tokens of a file, as an engine in C reads them."""

import struct


def read_sequentially(file, vocab_size, num_numbers):
    """What a C engine reads: numbers, then vocab_size records, and nothing of what follows."""
    with file.open("rb") as stream:
        numbers = struct.unpack(f"<{num_numbers}I", stream.read(4 * num_numbers))
        records = []
        for _ in range(vocab_size):
            score, length = struct.unpack("<fI", stream.read(8))
            assert length <= numbers[0]
            records.append((stream.read(length), score))
    return numbers, records
