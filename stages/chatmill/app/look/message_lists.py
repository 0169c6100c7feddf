"""Guesses of rows that hold a list of messages with a role and a content."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from chatmill.app.look.guess import (
    Guess,
    NoGuessError,
    Values,
    are_texts,
    best_named,
    by_path,
    frequent,
    mean_length,
    rank,
    words_of,
)
from chatmill.app.look.speakers import MAX_NAMES, name_speakers, speaker_of
from chatmill.datasets.formats.message_content import TRAIN_FIELDS

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
    if rivals:
        guess.doubts.append(f"content: {content} is taken; {', '.join(rivals)} also hold long texts")
    guess.doubts += _flag(guess, fields)
    names = [[str(_value(message, role)) for message in value if isinstance(message, dict)] for value in lists]
    guess.roles, guess.first, doubts = name_speakers(names)
    guess.doubts += doubts
    return guess


def _flat(value: list[Any]) -> list[Any]:
    """The messages of a list, or of the lists in it."""
    return [item for part in value for item in part] if all(isinstance(part, list) for part in value) else value


def _value(message: Any, path: str) -> Any:
    return next(iter(by_path([message]).get(path, [None])))


def _is_content(column: Sequence[Any]) -> bool:
    """Whether values are texts, or lists of parts with a type."""
    return all(
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(p, dict) and "type" in p for p in value))
        for value in column
    ) and any(column)


def _text_size(column: Sequence[Any]) -> float:
    """The mean number of characters of texts, and of those in lists of parts."""
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
    """How often the value of a field changes from one message to the next."""
    pairs = [(_value(one, name), _value(other, name)) for value in lists[:50] for one, other in pairwise(value)]
    return sum(one != other for one, other in pairs) / len(pairs) if pairs else 0.0


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
    return sum(len(str(_value(message, content))) for value in lists for message in value if isinstance(message, dict))


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
