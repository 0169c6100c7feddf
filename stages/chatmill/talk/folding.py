"""What of a text counts when texts are compared: neither case nor punctuation."""

import re

_BLANKS = re.compile(r"[\W_]+")


def fold(text: str) -> str:
    """The words of a text in lower case, without apostrophes, with one blank in place of all else between them."""
    return _BLANKS.sub(" ", text.casefold().replace("'", "").replace("\u2019", "")).strip()


def letters(text: str) -> str:
    """The letters and digits of a text in lower case, by which texts are compared."""
    return fold(text).replace(" ", "")
