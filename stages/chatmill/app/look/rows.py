"""Guesses which format reads the rows of a table, by which columns."""

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
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
    check_template,
    frequent,
    marked,
    mean_length,
    rank,
    separated,
    speaker_of,
    words_of,
)
from chatmill.app.look.lists import (
    LIST_NAMES,
    message_list,
    message_lists,
    refuse_one_side,
    refuse_pairs_in_lists,
    text_list_pairs,
    text_lists,
)
from chatmill.app.look.pairs import (
    ANSWERS,
    MIN_TEXT,
    QUESTIONS,
    add_common,
    is_label,
    pair_of_answer,
    pairs,
    refuse_other_answers,
    text_columns,
)
from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import value_at
from chatmill.datasets.formats.registry import COLUMNS
from chatmill.datasets.formats.trees import id_of, messages_of, order_of

# Guesses of rows that hold trees of messages, or that are messages of trees.

_PARENTS = ("parent", "reply", "replied", "previous", "prev")
_DELETED = ("deleted", "is_deleted", "removed", "is_removed")
_FLAGS = ("true", "false", "0", "1", "")


def tree_guess(rows: Sequence[Any]) -> Guess | None:
    """The mapping of trees of messages, which the rows hold, or of which each row is a message."""
    if not all(isinstance(row, dict) for row in rows):
        return None
    return _nested(rows) or _flat(rows)


def _nested(rows: Sequence[Any]) -> Guess | None:
    for path, lists in by_path(rows).items():
        before, _, key = path.rpartition(".")
        replies = [reply for value in lists if isinstance(value, list) for reply in value if isinstance(reply, dict)]
        if any(isinstance(reply.get(key), list) and reply[key] for reply in replies):
            found = [messages_of(value_at(row, before or ".", None), key) for row in rows]
            return _guess({"messages": before or ".", "replies": key}, found)
    return None


def _flat(rows: Sequence[Any]) -> Guess | None:
    """The mapping of rows of which most say by its id to which one they reply."""
    paths = list(by_path(rows))
    ids = {path: [id_of(row, path) for row in rows] for path in paths}
    for name, own in ids.items():
        known = {*own} - {None}
        if len(known) < len(rows):
            continue
        for path in best_named(paths, _PARENTS):
            named = [parent for parent in ids[path] if parent is not None]
            if path != name and named and sum(parent in known for parent in named) > MIN_SHARE * len(named):
                threads = _threads(rows, dict(zip(own, ids[path], strict=True)), own)
                trees = [tree for tree in paths if _is_tree(tree, rows, threads)]
                return _guess({"id": name, "parent": path} | ({"tree": trees[0]} if trees else {}), threads)
    return None


def _threads(rows: Sequence[Any], parents: dict[str | None, str | None], own: Sequence[str | None]) -> list[list[Any]]:
    threads = defaultdict[str | None, list[Any]](list)
    for name, row in zip(own, rows, strict=True):
        passed = {name}
        while (parent := parents[name]) in parents and parent not in passed:
            name = parent
            passed.add(name)
        threads[name].append(row)
    return list(threads.values())


def _is_tree(path: str, rows: Sequence[Any], threads: Sequence[Sequence[Any]]) -> bool:
    """Whether a column has one value for each of several threads, whose rows follow each other."""
    values = [str(value_at(row, path, None)) for row in rows]
    runs = 1 + sum(one != other for one, other in pairwise(values))
    each = [{str(value_at(row, path, None)) for row in thread} for thread in threads]
    return len(threads) > 1 and all(len(found) == 1 for found in each) and runs == len({*values}) == len(threads)


def _guess(columns: dict[str, str], threads: Sequence[list[Any]]) -> Guess | None:
    guess = message_list(".", threads)
    if guess is None:
        return None
    fields = by_path(message for thread in threads for message in thread)
    own = {name: column for name, column in guess.columns.items() if name != "messages" and name != column}
    guess.columns = columns | own
    ranks = [path for path in best_named(fields, ("rank",)) if not any(isinstance(v, list) for v in fields[path])]
    if ranks:
        guess.columns["rank"] = ranks[0]
    deleted = [path for path in best_named(fields, _DELETED) if {str(v).lower() for v in fields[path]} <= {*_FLAGS}]
    if deleted:
        guess.columns["deleted"] = deleted[0]
    best = "best ranked" if ranks else "first"
    guess.doubts.append(f"trees: each gives one conversation, along the {best} replies; all others are left out")
    return guess


# Guesses of rows of any table: which of the formats reads them, and by which columns.

_GSM8K = re.compile(r"<<[^<>]*=[^<>]*>>")
_HH = re.compile(r"\s*Human: .*\n\nAssistant:", re.DOTALL)
_TEXT_NAMES = ("text", "content", "document", "body", "article", "passage", "story", "page", "raw", "paragraph")
_CONVERSATIONS = ("conversation", "dialogue", "dialog", "thread", "session", "chat", "ticket", "channel", "id")
_SPEAKERS = ("role", "speaker", "from", "sender", "author", "user", "username")
_TIMES = ("timestamp", "datetime", "date", "time", "created", "sent", "ts")
_ORDERS = ("order", "turn", "index", "position", "seq", "sequence", "step", "number", *_TIMES, "id")
_MAX_CHAT = 300  # characters of a message in a chat, on average
_OPTIONAL = {("system", "system"), ("tools", "tools")}  # which the named formats read by themselves
NAMED = {"messages": {"messages": "messages", "role": "role", "content": "content"}, **COLUMNS}
_PAIR = {"prompt": "prompt", "response": "completion"}


def guess_rows(rows: Sequence[Any], *, json: bool = True) -> list[Guess]:
    """The likeliest formats of rows that have been read, the best one first. Raises NoGuessError if there is none.

    Most named formats read `json` alone; for all else it is `table`.
    """
    if not rows:
        raise NoGuessError("no row can be read")
    if all(isinstance(row, str) for row in rows):
        return _of_texts(list(rows), ".")
    if json and (guess := _by_structure(rows)) is not None:
        return [guess]
    if (guess := tree_guess(rows)) is not None:
        return [guess]
    all_values = by_path({".": row} if isinstance(row, list | str) else row for row in rows)
    values = frequent(all_values, len(rows))
    found = _by_columns(rows, values, json=json)
    for guess in found:
        if guess.format == "table":
            add_common(guess, all_values, len(rows))
            _name_format(guess, values, json=json)
    if not found:
        raise NoGuessError(_no_column(values, all_values))
    return found


def _by_columns(rows: Sequence[Any], values: Values, *, json: bool) -> list[Guess]:
    """The likeliest mappings of columns, and formats of texts in them, the best one first. Raises NoGuessError."""
    _check_ids(values)
    _check_json(values)
    named = pairs(values, named=True)
    found = [guess for guess in named if "chosen" in guess.columns] or _prompt_lists(values) or message_lists(values)
    found = found or text_list_pairs(rows) or text_lists(values) or _marked_columns(values, json=json) or named
    if not found:
        if flat := _flat_messages(rows, values):
            return [flat]
        refuse_pairs_in_lists(values)
        refuse_one_side(rows, values)
    return found or pairs(values, named=False) or _text_column(values) or pair_of_answer(values)


def _no_column(values: Values, all_values: Values) -> str:
    texts = text_columns(values)
    if len(texts) > 1:
        return (
            f"of the texts in {', '.join(texts)} the names do not say which is which: write format: table, "
            "columns: {prompt: …, response: …}; see the format table in data/README.md"
        )
    columns = ", ".join(sorted(all_values)) or "none"
    return (
        f"no column holds a conversation, or a question and its answer, or texts (columns: {columns}): "
        "see the format table in data/README.md for what can be mapped"
    )


def _of_texts(texts: list[str], column: str) -> list[Guess]:
    for guess in (marked(texts), separated(texts)):
        if guess is not None:
            guess.columns = {"messages": column}
            return [guess]
    check_template(texts)
    return [_documents(column)]


def _documents(column: str) -> Guess:
    doubt = f"{column} holds texts without marks of speakers: each is taken to be a document"
    return Guess(format="documents", columns={"text": column}, doubts=[doubt])


def _by_structure(rows: Sequence[Any]) -> Guess | None:
    first = rows[0]
    if not isinstance(first, dict):
        return None
    values = by_path(rows)
    if "message_tree_id" in first or {"role", "text", "replies"} <= first.keys():
        return Guess(format="oasst")
    entries = list(first.values()) if all(isinstance(value, dict) for value in first.values()) else [first]
    messages = [value_at(entry, "messages.0.0", None) for entry in entries]
    if any(isinstance(message, dict) and {"text", "sender"} <= message.keys() for message in messages):
        return Guess(format="chitchat")
    if (
        are_texts(values.get("chosen", []))
        and all(_HH.match(text) for text in values["chosen"])
        and "prompt" not in first
    ):
        return Guess(format="hh")
    answers = values.get("answer", [])
    if "question" in values and are_texts(answers) and sum("\n#### " in text for text in answers) > 0.8 * len(rows):
        return Guess(format="gsm8k") if any(_GSM8K.search(text) for text in answers) else None
    return None


def _check_ids(values: Values) -> None:
    ids = values.get("input_ids", [])
    texts = [path for path, found in values.items() if are_texts(found) and mean_length(found) > 20]
    if ids and not texts and isinstance(ids[0], list):
        raise NoGuessError("input_ids holds the ids of another tokenizer: the texts themselves are needed")


def _check_json(values: Values) -> None:
    for path, found in values.items():
        if rank(path, LIST_NAMES) is not None and are_texts(found):
            inside = sum(text.lstrip().startswith(("[{", '["', "[[", '{"')) for text in found)
            if inside > 0.8 * len(found):
                raise NoGuessError(f"{path} holds JSON as text: write it as a list, so that each row is one JSON value")


def _prompt_lists(values: Values) -> list[Guess]:
    """The mapping of a prompt that is a list of messages, or of a chosen conversation."""
    lists = {path for path, found in values.items() if all(isinstance(value, list) for value in found)}
    named = pairs(values, named=True)
    if named and lists & {*named[0].columns.values()}:
        return named
    if best_named([path for path, found in values.items() if are_texts(found)], QUESTIONS):
        refuse_other_answers(values)
    chosen = [path for path in lists if "chosen" in words_of(path)]
    if chosen and not named:
        found = message_lists({path: values[path] for path in chosen})
        fields = by_path(item for path in chosen for value in values[path] for item in value)
        return [guess for guess in found if {guess.columns["role"], guess.columns["content"]} <= fields.keys()]
    return []


def _marked_columns(values: Values, *, json: bool) -> list[Guess]:
    """The mappings of columns of texts in which marks begin turns, or a separator stands between them."""
    if not json and {"persona", "chat"} <= {path.lower() for path in values}:
        return [Guess(format="personachat")]
    texts = [path for path, found in values.items() if are_texts(found)]
    texts.sort(key=lambda path: -mean_length(values[path]))
    for path in best_named(texts, ("chosen",)) or texts:
        is_named = rank(path, LIST_NAMES) is not None
        guess = marked(values[path])
        if guess is None and (is_named or len(texts) == 1):
            guess = separated(values[path], lines=is_named)
        if guess is not None:
            guess.format = guess.format if json and path == "text" else "table"
            guess.columns = {"messages": path} if guess.format == "table" else {}
            return [guess]
    return []


def _flat_messages(rows: Sequence[Any], values: Values) -> Guess | None:
    """The mapping of rows that are messages. Raises NoGuessError where no column says of which conversation."""
    times = best_named(values, _TIMES)
    for path in best_named((path for path in values if words_of(path)[:1] != ["id"]), _SPEAKERS):
        column = values[path]
        texts = [name for name, found in values.items() if name != path and are_texts(found) and not is_label(found)]
        texts = [name for name in texts if not are_identifiers(values[name])]
        is_chat = bool(times) and mean_length(text for name in texts for text in values[name]) < _MAX_CHAT
        few = are_texts(column) and len({*column}) <= max(MAX_NAMES, len(column) // 4)
        are_known = few and sum(speaker_of(text) is not None for text in column) > 0.5 * len(column)
        if few and texts and (rank(path, _SPEAKERS) == 0 or are_known or is_chat):
            for name in best_named(values, _CONVERSATIONS):
                if guess := _gathered(rows, name, path, values):
                    return guess
            raise NoGuessError(
                f"each row is one message of {path}, and no column says of which conversation: add one, and map "
                "columns: {conversation: …, order: …, role: …, content: …}, or {id: …, parent: …} where some reply to "
                f"others; or read each as a document: format: documents, columns: {{text: {texts[0]}}}"
            )
    return None


def _gathered(rows: Sequence[Any], name: str, speaker: str, values: Values) -> Guess | None:
    """The mapping where a column names conversations, in most of which there are several speakers."""
    threads = defaultdict[str | None, list[Any]](list)
    for row in rows:
        threads[id_of(row, name)].append(row)
    speakers = [{str(value_at(row, speaker, None)) for row in thread} for thread in threads.values()]
    if sum(len(found) > 1 for found in speakers) < 0.5 * len(threads):
        return None
    columns = {"conversation": name}
    for path in best_named((path for path in values if path != name), _ORDERS):
        with suppress(UnusableRowError):
            if sum(len({order_of(row, path) for row in thread}) for thread in threads.values()) > 0.9 * len(rows):
                columns["order"] = path
                break
    for thread in threads.values() if "order" in columns else ():
        thread.sort(key=lambda row: order_of(row, columns["order"]))
    if (guess := message_list(".", list(threads.values()))) is not None:
        del guess.columns["messages"]
        guess.columns = columns | guess.columns
    return guess


def _text_column(values: Values) -> list[Guess]:
    """Documents, where one column of texts is left, or the longest one has a name of texts."""
    texts = [path for path, found in values.items() if are_texts(found) and not is_label(found)]
    texts = [path for path in texts if not are_identifiers(values[path])]
    texts = [path for path in texts if mean_length(values[path]) >= MIN_TEXT or rank(path, _TEXT_NAMES) == 0]
    named = best_named(texts, _TEXT_NAMES)
    if len(texts) == 1 or (
        named and mean_length(values[named[0]]) >= MIN_SHARE * max(mean_length(values[p]) for p in texts)
    ):
        column = texts[0] if len(texts) == 1 else named[0]
        if rank(column, ANSWERS) is not None:
            raise NoGuessError(f"{column} seems to hold answers, but no column holds their questions")
        check_template(values[column])
        guess = _documents(column)
        if (times := best_named(values, _TIMES)) and mean_length(values[column]) < _MAX_CHAT:
            guess.doubts.append(f"with {times[0]} these may be messages of a chat, but no column names the speakers")
        return [guess]
    return []


def _name_format(guess: Guess, values: Values, *, json: bool) -> None:
    """Name the format that reads the same columns, in place of a mapping; else leave out what is usual in one."""
    if guess.roles or guess.first or guess.turn_separator:
        return
    required = dict(guess.columns.items() - _OPTIONAL)
    formats = [name for name, known in NAMED.items() if required.items() == known.items() - _OPTIONAL]
    if guess.columns == _PAIR and "messages" not in values:
        formats = ["messages"]
    if json and formats and (formats[0] in ("messages", "sharegpt") or required == guess.columns):
        guess.format, guess.columns = formats[0], {}
        return
    for name in ("role", "content"):
        if guess.columns.get(name) == name:
            del guess.columns[name]
