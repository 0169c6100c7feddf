"""The languages of texts, by py3langid, whose model is part of the package."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

UNCERTAIN = "?"
_MIN_LETTERS = 20  # shorter texts are often judged wrongly
_MIN_PROBABILITY = 0.5
_MAX_CHARACTERS = 300  # of a text, that are looked at


def count_languages(texts: Iterable[str]) -> dict[str, int] | None:
    """The number of texts by language (ISO 639-1), `?` where it is uncertain; None if py3langid is not installed."""
    identifier = _identifier()
    if identifier is None:
        return None
    return dict(Counter(_language(text[:_MAX_CHARACTERS], identifier) for text in texts).most_common())


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _language(text: str, identifier: Any) -> str:
    letters = sum(character.isalpha() * (1 if character.isascii() else 3) for character in text)
    if letters < _MIN_LETTERS:
        return UNCERTAIN
    language, probability = identifier.classify(text)
    return str(language) if probability >= _MIN_PROBABILITY else UNCERTAIN
