"""Guesses of rows that hold lists: of messages, of texts in turn, or of questions and of their answers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from chatmill.app.look.guess import (
    MAX_NAMES,
    MIN_SHARE,
    Guess,
    NoGuessError,
    Values,
    are_identifiers,
    are_texts,
    best_named,
    by_path,
    frequent,
    mean_length,
    name_speakers,
    rank,
    speaker_of,
    words_of,
)
from chatmill.app.look.pairs import ANSWERS, QUESTIONS, text_columns
from chatmill.datasets.formats.mapping import TRAIN_FIELDS, value_at

# Guesses of rows that hold a list of messages with a role and a content.

LIST_NAMES = (
    "messages", "conversations", "conversation", "dialogue", "dialog", "dialogs", "chat", "turns", "utterances",
    "exchange", "log", "history", "thread", "transcript", "items",
)  # fmt: skip
_ROLE_NAMES = ("role", "from", "speaker", "author", "sender", "who", "name", "user", "type", "agent", "participant")
_CONTENT_NAMES = ("content", "value", "text", "utterance", "message", "body", "msg", "turn", "transcript", "sentence")
_FLAGS = ("loss_weight", "loss", "trainable", "training", "trained", "learn", "train_on", "is_trained", "use_loss")
_MAX_ROLE = 40  # characters of a name, on average
_MAX_STRANGERS = 4  # different names that are not known, in a field whose name is not known


def message_lists(values: Values) -> list[Guess]:
    """The mappings of columns that hold lists of messages, the likeliest first. Raises NoGuessError."""
    found = [(path, guess) for path, column in values.items() if (guess := message_list(path, column)) is not None]
    found.sort(key=lambda item: -_size(values[item[0]], item[1].columns["content"]))
    best = sorted(found, key=lambda item: rank(item[0], LIST_NAMES) is None)
    if len(best) > 1:
        others = ", ".join(path for path, _ in best[1:] if rank(path, LIST_NAMES) is not None)
        doubt = f"{best[0][0]} is taken, but these hold messages as well: {others}"
        best[0][1].doubts += [doubt] if others else []
    return [guess for _, guess in best]


def message_list(path: str, found: Sequence[Any]) -> Guess | None:
    """The mapping of a column of lists of messages; None where they are none. Raises NoGuessError."""
    lists = [_flat(value) for value in found if isinstance(value, list) and value]
    messages = [message for value in lists for message in value if isinstance(message, dict)]
    if not messages or len(messages) < sum(map(len, lists)) or 2 * len(lists) < len(found):
        return None
    fields = by_path(messages)
    texts = {name: column for name, column in frequent(fields, len(messages), 0.5).items() if _is_content(column)}
    role = _role_of(frequent(fields, len(messages), 0.95), lists)
    contents = sorted((name for name in texts if name != role), key=lambda name: -_text_size(texts[name]))
    if role is None or not contents:
        return None
    longest = _text_size(texts[contents[0]])
    named = [name for name in best_named(contents, _CONTENT_NAMES) if _text_size(texts[name]) > 0.3 * longest]
    content = named[0] if named else contents[0]
    guess = Guess(columns={"messages": path, "role": role, "content": content})
    rivals = [name for name in contents if name != content and _text_size(texts[name]) > 0.5 * longest]
    if rivals := [name for name in rivals if not are_identifiers(texts[name])]:
        guess.doubts.append(f"content: {content} is taken, but there are long texts in {', '.join(rivals)} as well")
    guess.doubts += _flag(guess, fields)
    name_speakers(guess, [[str(value_at(message, role, None)) for message in value] for value in lists])
    return guess


def _flat(value: list[Any]) -> list[Any]:
    return [item for part in value for item in part] if all(isinstance(part, list) for part in value) else value


def _is_content(column: Sequence[Any]) -> bool:
    return all(
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(p, dict) and "type" in p for p in value))
        for value in column
    ) and any(column)


def _text_size(column: Sequence[Any]) -> float:
    texts = [
        value if isinstance(value, str) else "".join(str(part.get("text", part.get("value", ""))) for part in value)
        for value in column
    ]
    return mean_length(texts)


def _role_of(fields: Values, lists: Sequence[Sequence[Any]]) -> str | None:
    """The field of the speaker. Raises NoGuessError where it holds numbers."""
    scores: dict[str, float] = {}
    numbered = []
    for name, column in fields.items():
        order = rank(name, _ROLE_NAMES)
        if order is not None and all(isinstance(value, int) for value in column) and len({*column}) <= MAX_NAMES:
            numbered.append(name)
        if not are_texts(column) or mean_length(column) > _MAX_ROLE or len({*column}) > max(MAX_NAMES, len(lists) * 3):
            continue
        known = sum(speaker_of(text) is not None for text in column) / len(column)
        changes = _changes(lists, name)
        few = len({*column}) <= (_MAX_STRANGERS if order is None else len(column) - 1)
        if known < 0.5 and (changes < 0.5 or not few):
            continue
        scores[name] = 3 * known + 2 * (order is not None) + changes - 0.01 * (order or 0)
    if numbered and not scores:
        value = fields[numbered[0]][0]
        raise NoGuessError(f"{numbered[0]} of the messages holds {value!r}, not the name of a speaker: write names")
    return max(scores, key=lambda name: scores[name], default=None)


def _changes(lists: Sequence[Sequence[Any]], name: str) -> float:
    names = [[value_at(message, name, None) for message in value] for value in lists[:50]]
    changes = [one != other for value in names for one, other in pairwise(value)]
    return mean(changes) if changes else 0.0


def _flag(guess: Guess, fields: Values) -> list[str]:
    """Name the field that says whether a message is trained; returns a doubt about flags of which that is unclear."""
    flags = {name: column for name, column in fields.items() if all(value in (0, 1) for value in column)}
    if any(name in flags for name in TRAIN_FIELDS):
        return []
    if found := best_named(flags, _FLAGS):
        guess.columns["train"] = found[0]
        return [f"train: {found[0]} is taken to say whether a message is trained"]
    unclear = [name for name in flags if {"mask", "masked", "ignore", "weight", "train"} & {*words_of(name)}]
    return [f"messages have the flag {name}, which is not used: see columns.train" for name in unclear]


def _size(found: Sequence[Any], content: str) -> int:
    lists = (_flat(value) for value in found if isinstance(value, list))
    return sum(len(str(value_at(message, content, None))) for value in lists for message in value)


def refuse_pairs_in_lists(values: Values) -> None:
    """Raise NoGuessError for lists whose items have no role: pairs, or keys that are the speakers."""
    for path, found in values.items():
        parts = [item for value in found if isinstance(value, list) for item in value]
        if parts and all(isinstance(item, list) and len(item) == 2 and are_texts(item) for item in parts):
            raise NoGuessError(f"{path} holds pairs of texts: write all texts of a row as one list, or as messages")
        items = [item for item in parts if isinstance(item, dict)]
        fields = by_path(items)
        speakers = [name for name in fields if speaker_of(name) in ("user", "assistant")]
        if len({speaker_of(name) for name in speakers}) == 2:
            raise NoGuessError(
                f"the items of {path} have the keys {', '.join(speakers)}: write one message per item, with a role and "
                "a content, as {role: user, content: …}"
            )
        texts = [name for name, column in frequent(fields, len(items)).items() if are_texts(column)]
        if texts and rank(path, LIST_NAMES) is not None:
            raise NoGuessError(
                f"the items of {path} have {', '.join(fields)}, but none says who speaks: add a role to each"
            )


# Guesses of rows that hold lists of texts: of two speakers in turn, or of questions and of the answers to them.

_MIN_TEXT = 8  # characters of a text in a list, on average; shorter ones are labels
_MIN_ANSWERED = 0.2  # share of the rows that have answers
_NO_TEXTS = {
    "tags", "labels", "keywords", "options", "choices", "answers", "ids", "categories", "languages", "entities",
}  # fmt: skip
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
