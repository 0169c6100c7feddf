"""Guesses of rows that hold lists of texts: of two speakers in turn, or of questions and of the answers to them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from chatmill.app.look.guess import (
    MIN_SHARE,
    Guess,
    NoGuessError,
    Values,
    are_texts,
    best_named,
    by_path,
    mean_length,
    words_of,
)
from chatmill.app.look.message_lists import LIST_NAMES
from chatmill.app.look.pairs import ANSWERS, QUESTIONS, text_columns
from chatmill.app.look.speakers import speaker_of

_MIN_TEXT = 8  # characters of a text in a list, on average; shorter ones are labels
_MIN_ANSWERED = 0.2  # share of the rows that have answers
_NO_TEXTS = {
    "tags",
    "labels",
    "keywords",
    "options",
    "choices",
    "answers",
    "ids",
    "categories",
    "languages",
    "entities",
}
_LISTS_OF_QUESTIONS = (*QUESTIONS, "questions", "prompts", "queries", "turns")
_LISTS_OF_ANSWERS = (*ANSWERS, "choices", "reference", "references", "replies")


def text_lists(values: Values) -> list[Guess]:
    """The mappings of columns that hold lists of texts, the likeliest first. Raises NoGuessError."""
    found = []
    for path, column in values.items():
        lists = [value for value in column if isinstance(value, list) and value]
        texts = [text for value in lists for text in value]
        if (
            2 * len(lists) > len(column)
            and are_texts(texts)
            and len(texts) >= 1.5 * len(lists)
            and mean_length(texts) >= _MIN_TEXT
            and not _NO_TEXTS & {*words_of(path)}
        ):
            found.append(path)
    found.sort(key=lambda path: -sum(map(len, map(str, values[path]))))
    order = best_named(found, LIST_NAMES) or found
    if order:
        _check_answers(order[0], values)
    doubts = [f"{path}: its texts are taken to alternate, and the first one to be the user's" for path in order]
    return [Guess(columns={"messages": path}, doubts=[doubt]) for path, doubt in zip(order, doubts, strict=True)]


def _check_answers(path: str, values: Values) -> None:
    """Raise NoGuessError for lists of questions alone, or of texts that begin with the name of a speaker."""
    texts = [text for value in values[path] if isinstance(value, list) for text in value]
    others = [name for name in values if name != path and {"question", "prompt"} & {*words_of(name)}]
    if others and {len(value) for value in values[path]} <= {1, 2} and not are_texts(values[others[0]]):
        raise NoGuessError(
            f"{path} holds texts that seem to be questions alone (there is {others[0]}), and no column holds answers: "
            f"{_needed(path, 'questions')}; if every other text is an answer, this reads them: format: table, "
            f"columns: {{messages: {path}}}"
        )
    named = sum(speaker_of(text.partition(":")[0]) is not None for text in texts)
    if named > 0.8 * len(texts):
        raise NoGuessError(
            f"the texts in {path} begin with a speaker, as {texts[0][:40]!r}: write messages with a role and a content"
        )


def _needed(path: str, what: str) -> str:
    """What rows need that have questions or answers alone."""
    columns = f"prompt: {path}, response: …" if what == "questions" else f"prompt: …, response: {path}"
    return f"each row needs both, as two texts, or as two lists of as many texts (columns: {{{columns}}})"


def text_list_pairs(rows: Sequence[Any]) -> list[Guess]:
    """The mapping of a list of questions and a list of as many answers."""
    lists = _lists(rows)
    answered = [path for path, found in lists.items() if len(found) >= _MIN_ANSWERED * len(rows)]
    for answer in sorted(best_named(answered, _LISTS_OF_ANSWERS), key=lambda path: -len(lists[path])):
        others = [path for path, found in lists.items() if path != answer and len(found) >= MIN_SHARE * len(rows)]
        for prompt in best_named(others, _LISTS_OF_QUESTIONS):
            both = lists[prompt].keys() & lists[answer].keys()
            equal = sum(len(lists[prompt][row]) == len(lists[answer][row]) for row in both)
            if equal >= max(MIN_SHARE * len(both), _MIN_ANSWERED * len(rows)):
                doubt = f"the texts in {prompt} are taken to be questions, and those in {answer} the answers to them"
                return [Guess(columns={"prompt": prompt, "response": answer}, doubts=[doubt])]
    return []


def refuse_one_side(rows: Sequence[Any], values: Values) -> None:
    """Raise NoGuessError for lists of questions, or of answers, in rows that have no other text."""
    lists = [path for path, found in _lists(rows).items() if len(found) >= MIN_SHARE * len(rows)]
    if not lists or text_columns(values):
        return
    path = (best_named(lists, (*_LISTS_OF_QUESTIONS, *_LISTS_OF_ANSWERS)) or lists)[0]
    words = {word for name in (*values, path) for word in words_of(name)}
    what, other = ("answers", "questions") if words & {"answer", "answers", "choices"} else ("questions", "answers")
    raise NoGuessError(f"{path} seems to hold {what} alone, and no column holds {other}: {_needed(path, what)}")


def _lists(rows: Sequence[Any]) -> dict[str, dict[int, list[str]]]:
    """The lists of texts by their paths, also within a list of one object, and by the numbers of their rows."""
    found = defaultdict[str, dict[int, list[str]]](dict)
    for number, row in enumerate(rows):
        for path, value in _values(row):
            if isinstance(value, list) and are_texts(value):
                found[path][number] = value
    return found


def _values(row: Any) -> Iterator[tuple[str, Any]]:
    for path, (value,) in by_path([row]).items():
        yield path, value
        if isinstance(value, list) and len(value) == 1:
            yield from ((f"{path}.0.{key}", inner) for key, (inner,) in by_path(value).items())
