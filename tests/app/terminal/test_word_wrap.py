import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from chatmill.app.terminal.text import WordWrap


def screen(printed):
    """The lines that a terminal shows of what is printed."""
    lines = [""]
    for move, character in re.findall(r"\x1b\[(\d+)D\x1b\[K|(.)", printed, re.DOTALL):
        if move:
            kept = lines[-1]
            while kept and wcswidth(lines[-1]) - wcswidth(kept) < int(move):
                kept = kept[:-1]
            lines[-1] = kept
        elif character == "\n":
            lines.append("")
        else:
            lines[-1] += character
    return lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("A long sentence", ["A long ", "sentence"]),
        ("A long one is", ["A long one", "is"]),
        ("abcdefghijklmn op", ["abcdefghij", "klmn op"]),
        ("one\n\ntwo three four", ["one", "", "two three ", "four"]),
        ("我很高兴认识你们", ["我很高兴认", "识你们"]),
        ("to 我很高兴", ["to ", "我很高兴"]),
        ("abcdefgh\tij", ["abcdefgh", "ij"]),
    ],
)
def test_lines_break_between_words(text, lines):
    assert screen(WordWrap().feed(text, 11)) == lines


@given(st.lists(st.text("ab cd\né我", max_size=30)))
def test_however_it_is_divided_it_looks_the_same_and_fits(parts):
    wrap = WordWrap()
    shown = screen("".join(wrap.feed(part, 11) for part in parts))
    assert shown == screen(WordWrap().feed("".join(parts), 11))
    assert all(wcswidth(line) <= 10 for line in shown)
    words = re.findall(r"\S", "".join(parts))
    assert words == re.findall(r"\S", "".join(shown))
