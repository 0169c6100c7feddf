"""Guesses of rows that hold messages with a role and a content, in lists or trees, or that are such messages."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from statistics import mean
from typing import Any

from chatmill.app.look.guess import (
    MAX_NAMES,
    MIN_SHARE,
    Guess,
    NoGuessError,
    Values,
    are_identifiers,
    are_lists,
    are_texts,
    best_named,
    by_path,
    frequent,
    mean_length,
    name_speakers,
    rank,
    speaker_of,
    text_columns,
    words_of,
)
from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import TRAIN_FIELDS, content_bytes, value_at
from chatmill.datasets.formats.trees import id_of, messages_of, order_of

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
    found.sort(key=lambda item: (rank(item[0], LIST_NAMES) is None, -mean_length(values[item[0]])))
    if others := [path for path, _ in found[1:] if rank(path, LIST_NAMES) is not None]:
        found[0][1].doubts.append(f"{found[0][0]} is taken, but these hold messages as well: {', '.join(others)}")
    return [guess for _, guess in found]


def message_list(path: str, found: Sequence[Any]) -> Guess | None:
    """The mapping of a column of lists of messages; None where they are none. Raises NoGuessError."""
    lists = [_flat(value) for value in found if isinstance(value, list) and value]
    messages = [message for value in lists for message in value if isinstance(message, dict)]
    if not messages or len(messages) < sum(map(len, lists)) or 2 * len(lists) < len(found):
        return None
    fields = by_path(messages)
    texts = {name: column for name, column in frequent(fields, len(messages), 0.5).items() if _is_content(column)}
    role = _role_of(frequent(fields, len(messages), 0.95), lists)
    sizes = {name: mean(map(content_bytes, column)) for name, column in texts.items() if name != role}
    if role is None or not sizes:
        return None
    contents = sorted(sizes, key=lambda name: -sizes[name])
    longest = sizes[contents[0]]
    content = next((one for one in best_named(contents, _CONTENT_NAMES) if sizes[one] > 0.3 * longest), contents[0])
    guess = Guess(columns={"messages": path, "role": role, "content": content})
    rivals = [name for name in contents if name != content and sizes[name] > 0.5 * longest]
    if rivals := [name for name in rivals if not are_identifiers(texts[name])]:
        guess.doubts.append(f"content: {content} is taken, but there are long texts in {', '.join(rivals)} as well")
    _add_flag(guess, fields)
    name_speakers(guess, [[str(value_at(message, role, None)) for message in value] for value in lists])
    return guess


def _flat(value: list[Any]) -> list[Any]:
    return [item for part in value for item in part] if are_lists(value) else value


def _is_content(column: Sequence[Any]) -> bool:
    return all(
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(p, dict) and "type" in p for p in value))
        for value in column
    ) and any(column)


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
        names = [[value_at(message, name, None) for message in value] for value in lists[:50]]
        turns = [one != other for value in names for one, other in pairwise(value)]
        changes = mean(turns) if turns else 0.0
        few = len({*column}) <= (_MAX_STRANGERS if order is None else len(column) - 1)
        if known >= 0.5 or (changes >= 0.5 and few):
            scores[name] = 3 * known + 2 * (order is not None) + changes - 0.01 * (order or 0)
    if numbered and not scores:
        value = fields[numbered[0]][0]
        raise NoGuessError(f"{numbered[0]} of the messages holds {value!r}, not the name of a speaker: write names")
    return max(scores, key=lambda name: scores[name], default=None)


def _add_flag(guess: Guess, fields: Values) -> None:
    """Name the field that says whether a message is trained; a doubt for flags of which that is unclear."""
    flags = {name: column for name, column in fields.items() if all(value in (0, 1) for value in column)}
    if any(name in flags for name in TRAIN_FIELDS):
        return
    if found := best_named(flags, _FLAGS):
        guess.columns["train"] = found[0]
        guess.doubts.append(f"train: {found[0]} is taken to say whether a message is trained")
        return
    unclear = [name for name in flags if {"mask", "masked", "ignore", "weight", "train"} & {*words_of(name)}]
    guess.doubts += [f"messages have the flag {name}, which is not used: see columns.train" for name in unclear]


# Trees of messages, which the rows hold, or of which each row is a message.

_PARENTS = ("parent", "reply", "replied", "previous", "prev")
_DELETED = ("deleted", "is_deleted", "removed", "is_removed")
_FLAG_VALUES = {"true", "false", "0", "1", ""}


def message_trees(rows: Sequence[Any], values: Values) -> Guess | None:
    """The mapping of rows that hold trees of messages, or that are the messages of trees; None if neither."""
    for path, lists in values.items():
        before, _, key = path.rpartition(".")
        replies = [reply for value in lists if isinstance(value, list) for reply in value if isinstance(reply, dict)]
        if any(isinstance(reply.get(key), list) and reply[key] for reply in replies):
            found = [messages_of(value_at(row, before or ".", None), key) for row in rows]
            return _tree_guess({"messages": before or ".", "replies": key}, found)
    ids = {path: [id_of(row, path) for row in rows] for path in values}
    unique = [path for path, found in ids.items() if len({*found} - {None}) == len(rows)]
    for own in unique:
        by_id = dict(zip(ids[own], rows, strict=True))
        for parent in best_named((path for path in values if path != own), _PARENTS):
            parent_ids = [name for name in ids[parent] if name is not None]
            if parent_ids and sum(name in by_id for name in parent_ids) > MIN_SHARE * len(parent_ids):
                pairs = [[by_id[name], row] for name, row in zip(ids[parent], rows, strict=True) if name in by_id]
                tree_columns = [path for path in values if _names_trees(path, rows, pairs)]
                columns = {"id": own, "parent": parent} | ({"tree": tree_columns[0]} if tree_columns else {})
                return _tree_guess(columns, pairs)
    return None


def _names_trees(path: str, rows: Sequence[Any], pairs: Sequence[Sequence[Any]]) -> bool:
    """Whether a column has one value for each of several trees, whose rows follow each other."""
    values = [str(value_at(row, path, None)) for row in rows]
    runs = sum(1 for _ in groupby(values))
    return 1 < runs == len({*values}) < len(rows) and all(
        value_at(message, path, None) == value_at(reply, path, None) for message, reply in pairs
    )


def _tree_guess(columns: dict[str, str], threads: Sequence[list[Any]]) -> Guess | None:
    guess = message_list(".", threads)
    if guess is None:
        return None
    fields = by_path(message for thread in threads for message in thread)
    own = {name: column for name, column in guess.columns.items() if name != "messages" and name != column}
    guess.columns = columns | own
    ranks = [path for path in best_named(fields, ("rank",)) if not any(isinstance(v, list) for v in fields[path])]
    deleted = [path for path in best_named(fields, _DELETED) if {str(v).lower() for v in fields[path]} <= _FLAG_VALUES]
    guess.columns |= {name: found[0] for name, found in (("rank", ranks), ("deleted", deleted)) if found}
    best = "best ranked" if ranks else "first"
    guess.doubts.append(f"trees: each gives one conversation, along the {best} replies; all others are left out")
    return guess


# Rows that are messages, and say of which conversation.

_CONVERSATIONS = ("conversation", "dialogue", "dialog", "thread", "session", "chat", "ticket", "channel", "id")
_SPEAKERS = ("role", "speaker", "from", "sender", "author", "user", "username")
TIMES = ("timestamp", "datetime", "date", "time", "created", "sent", "ts")
_ORDERS = ("order", "turn", "index", "position", "seq", "sequence", "step", "number", *TIMES, "id")
MAX_CHAT = 300  # characters of a message in a chat, on average


def single_messages(rows: Sequence[Any], values: Values) -> Guess | None:
    """The mapping of rows that are messages. Raises NoGuessError where no column says of which conversation."""
    for speaker in best_named((path for path in values if words_of(path)[:1] != ["id"]), _SPEAKERS):
        column = values[speaker]
        texts = [path for path in text_columns(values) if path != speaker]
        is_short = mean_length(text for path in texts for text in values[path]) < MAX_CHAT
        few = are_texts(column) and len({*column}) <= max(MAX_NAMES, len(column) // 4)
        are_known = sum(speaker_of(str(text)) is not None for text in column) > 0.5 * len(column)
        is_speaker = rank(speaker, _SPEAKERS) == 0 or are_known or (is_short and best_named(values, TIMES))
        if few and texts and is_speaker:
            for conversation in best_named(values, _CONVERSATIONS):
                if guess := _gathered(rows, conversation, speaker, values):
                    return guess
            raise NoGuessError(
                f"each row is one message of {speaker}, and no column says of which conversation: add one, and map "
                "columns: {conversation: …, order: …, role: …, content: …}, or {id: …, parent: …} where some reply to "
                f"others; or read each as a document: format: documents, columns: {{text: {texts[0]}}}"
            )
    return None


def _gathered(rows: Sequence[Any], conversation: str, speaker: str, values: Values) -> Guess | None:
    """The mapping where a column names conversations, in most of which there are several speakers."""
    threads = defaultdict[str | None, list[Any]](list)
    for row in rows:
        threads[id_of(row, conversation)].append(row)
    speakers = [{str(value_at(row, speaker, None)) for row in thread} for thread in threads.values()]
    if sum(len(found) > 1 for found in speakers) < 0.5 * len(threads):
        return None
    columns = {"conversation": conversation}
    for path in best_named((path for path in values if path != conversation), _ORDERS):
        with suppress(UnusableRowError):
            if sum(len({order_of(row, path) for row in thread}) for thread in threads.values()) > 0.9 * len(rows):
                columns["order"] = path
                for thread in threads.values():
                    thread.sort(key=lambda row: order_of(row, columns["order"]))
                break
    if (guess := message_list(".", list(threads.values()))) is not None:
        del guess.columns["messages"]
        guess.columns = columns | guess.columns
    return guess
