"""How people write a plain sentence: mostly with a capital and a full stop, sometimes in haste or with typos."""

import re
from collections.abc import Container
from random import Random

_CAPITAL = re.compile(r"(?:^|[.?!] )\W*[^\W\d_]|\bi\b")
_SHORT_FORMS = {"you": "u", "are": "r", "please": "pls"}  # English; apostrophes are dropped in any language
_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    key: [row[near] for row in _KEYBOARD[max(0, y - 1) : y + 2] for near in (x - 1, x, x + 1) if 0 <= near < len(row)]
    for y, keys in enumerate(_KEYBOARD)
    for x, key in enumerate(keys)
}


def capitalize(text: str) -> str:
    """The text with a capital at the beginning of each sentence, and with the word I."""
    return _CAPITAL.sub(lambda match: match[0].upper(), text)


def vary_spelling(text: str, random: Random) -> str:
    """A plain sentence as one may write it; `text` has a question mark where it is a question, and no full stop."""
    style = random.random()
    text = text.lower() if style < 0.25 else capitalize(text)
    if random.random() < (0.6 if style < 0.25 else 0.25):
        return text.rstrip(".?! ")
    return text if text.endswith((".", "?", "!")) else f"{text}."


def add_typos(text: str, random: Random, kept: Container[str]) -> str:
    """The text with one or two typing errors, short forms and dropped apostrophes; the words in `kept` stay.

    A text without words in which an error leaves a word, such as one of two letters, may stay as it is.
    """
    plain = text.split(" ")
    words = [word if word in kept or random.random() < 0.4 else _short_form(word) for word in plain]
    whole = [i for i, word in enumerate(words) if word == plain[i] and word.isalpha() and word not in kept]
    places = [i for i in whole if len(words[i]) > 3] or [i for i in whole if len(words[i]) > 2]
    for index in random.sample(places, min(len(places), random.choice((1, 1, 2)))):
        words[index] = _typo(words[index], random)
    return " ".join(words)


def _short_form(word: str) -> str:
    return _SHORT_FORMS.get(word, word).replace("'", "")


def _typo(word: str, random: Random) -> str:
    """The word with a letter after the first one dropped, doubled, exchanged with the one before, or a near key."""
    place, kind = random.randrange(1, len(word)), random.randrange(4)
    letter = word[place]
    if kind == 0:
        letter = ""
    elif kind == 1:
        letter *= 2
    elif kind == 2 and word[place - 1] != letter:
        return f"{word[: place - 1]}{letter}{word[place - 1]}{word[place + 1 :]}"
    else:
        letter = random.choice([near for near in _NEIGHBOURS.get(letter, "") if near != letter] or [letter * 2])
    return f"{word[:place]}{letter}{word[place + 1 :]}"
