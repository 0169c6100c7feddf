"""Bin packing of items into rows of equal length."""

from collections.abc import Sequence


def best_fit(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Assign items to rows: longest first, each to the fullest row that still has room for it.

    `best_fit([5, 3, 2, 6], 8)` is `[[3, 2], [0, 1]]`.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # rows by the number of tokens that still fit
    rooms = 0  # bit r is set where by_room[r] has rows
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = row_length, len(rows)
            rows.append([])
        rows[row].append(item)
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows
