"""Guesses which format reads the rows of a table, by which columns."""

import re
from collections.abc import Sequence
from typing import Any

from chatmill.app.look.guess import (
    MIN_SHARE,
    Guess,
    NoGuessError,
    Values,
    are_lists,
    are_texts,
    best_named,
    by_path,
    frequent,
    mean_length,
    rank,
    speaker_of,
    text_columns,
    words_of,
)
from chatmill.app.look.lists import LIST_NAMES, MAX_CHAT, TIMES, message_lists, message_trees, single_messages
from chatmill.app.look.pairs import (
    ANSWERS,
    LISTS_OF_ANSWERS,
    LISTS_OF_QUESTIONS,
    MIN_TEXT,
    QUESTIONS,
    add_common,
    alternating_lists,
    are_text_lists,
    list_pair,
    named_pair,
    pair_in_order,
)
from chatmill.app.look.texts import check_template, text_guess
from chatmill.datasets.formats.registry import COLUMNS
from chatmill.datasets.formats.table import from_json

_CALL_OF_GSM8K = re.compile(r"<<[^<>]*=[^<>]*>>")
_TURNS_OF_HH = re.compile(r"\s*Human: .*\n\nAssistant:", re.DOTALL)
_TEXT_NAMES = ("text", "content", "document", "body", "article", "passage", "story", "page", "raw", "paragraph")
_OPTIONAL = {"query", "system", "tools"}  # which rows of the named formats may lack
_MESSAGES = {"messages": "messages", "role": "role", "content": "content", "system": "system", "tools": "tools"}
NAMED = {"messages": _MESSAGES, **COLUMNS}


def guess_rows(rows: Sequence[Any]) -> list[Guess]:
    """The likeliest formats of rows, the best one first. Raises NoGuessError if there is none."""
    if not rows:
        raise NoGuessError("no row can be read")
    all_values = by_path(rows)
    for path in all_values:
        if rank(path, LIST_NAMES) is not None:
            all_values[path] = [from_json(value) if isinstance(value, str) else value for value in all_values[path]]
    values = frequent(all_values, len(rows))
    unmapped = _unmapped(values)
    try:
        found = _of_columns(rows, values, all_values)
    except NoGuessError:
        if not unmapped:
            raise
        return unmapped
    for guess in found:
        if guess.format == "table":
            add_common(guess, all_values, len(rows))
            _name_format(guess)
    if not found and not unmapped:
        raise NoGuessError(_no_column(values, all_values))
    return [*unmapped, *found]


def _unmapped(values: Values) -> list[Guess]:
    """The formats that are no mapping, and seem to be there by their columns."""
    chosen, answers, keys = values.get("chosen", []), values.get("answer", []), values.keys()
    messages = [found[0] for path, found in values.items() if words_of(path)[:1] == ["messages"]]
    bursts = [burst for value in messages if isinstance(value, list) for burst in value if isinstance(burst, list)]
    seen = {
        "oasst": "message_tree_id" in keys or {"role", "text", "replies"} <= keys,
        "chitchat": any({"text", "sender"} <= by_path(burst).keys() for burst in bursts),
        "hh": "prompt" not in keys and are_texts(chosen) and all(_TURNS_OF_HH.match(text) for text in chosen),
        "gsm8k": "question" in keys and are_texts(answers) and any(_CALL_OF_GSM8K.search(text) for text in answers),
        "personachat": {"persona", "chat"} <= {path.lower() for path in keys},
    }
    return [Guess(format=name) for name, is_there in seen.items() if is_there]


def _of_columns(rows: Sequence[Any], values: Values, all_values: Values) -> list[Guess]:
    """The likeliest mappings of columns, the best one first. Raises NoGuessError."""
    if (guess := message_trees(rows, all_values)) is not None:
        return [guess]
    if are_lists(values.get("input_ids", [0])) and not text_columns(values, MIN_TEXT):
        raise NoGuessError("input_ids holds the ids of another tokenizer: the texts themselves are needed")
    named = named_pair(values)
    if named and ("chosen" in named.columns or any(are_lists(values[path]) for path in named.columns.values())):
        return [named]
    if not named:
        _refuse_lists_of_answers(values)
    chosen = {path: found for path, found in values.items() if "chosen" in words_of(path) and are_lists(found)}
    if found := (message_lists(chosen) if not named else []) or message_lists(values):
        return found
    if guess := list_pair(all_values, len(rows)):
        return [guess]
    if found := alternating_lists(values):
        _refuse_no_turns(found[0].columns["messages"], values)
        return found
    if guess := _text_turns(values) or named or single_messages(rows, values):
        return [guess]
    _refuse_items(values)
    _refuse_one_side(values)
    guess = pair_in_order(values) or _documents(values)
    return [guess] if guess else []


def _text_turns(values: Values) -> Guess | None:
    """The mapping of a column of texts in which marks begin turns, or a separator stands between them."""
    texts = sorted((path for path, found in values.items() if are_texts(found)), key=lambda p: -mean_length(values[p]))
    for path in best_named(texts, ("chosen",)) or texts:
        is_list = rank(path, LIST_NAMES) is not None
        guess = text_guess(values[path], path, lines=is_list)
        if guess and (is_list or len(texts) == 1 or not guess.turn_separator):
            return guess
    return None


def _documents(values: Values) -> Guess | None:
    """Documents, where one column of texts is left, or the longest one has a name of texts."""
    texts = [path for path in text_columns(values) if rank(path, _TEXT_NAMES) == 0]
    texts += [path for path in text_columns(values, MIN_TEXT) if path not in texts]
    texts = ["."] if are_texts(values.get(".", [None])) else texts
    longest = max((mean_length(values[path]) for path in texts), default=0)
    named = [path for path in best_named(texts, _TEXT_NAMES) if mean_length(values[path]) >= MIN_SHARE * longest]
    if len(texts) != 1 and not named:
        return None
    column = texts[0] if len(texts) == 1 else named[0]
    if rank(column, ANSWERS) is not None:
        raise NoGuessError(f"{column} seems to hold answers, but no column holds their questions")
    check_template(values[column])
    doubts = [f"{column} holds texts without marks of speakers: each is taken to be a document"]
    if (times := best_named(values, TIMES)) and mean_length(values[column]) < MAX_CHAT:
        doubts.append(f"with {times[0]} these may be messages of a chat, but no column names the speakers")
    return Guess(format="documents", columns={"text": column}, doubts=doubts)


def _name_format(guess: Guess) -> None:
    """Name the format that reads the same columns, in place of a mapping; else leave out what is usual in one."""
    if guess.roles or guess.first or guess.turn_separator:
        return
    pair = {"prompt": "prompt", "response": "completion"}
    for name, known in {**NAMED, "messages ": pair}.items():
        if guess.columns.items() <= known.items() and known.keys() - guess.columns.keys() <= _OPTIONAL:
            guess.format, guess.columns = name.strip(), {}
            return
    for name in ("role", "content"):
        if guess.columns.get(name) == name:
            del guess.columns[name]


# Rows that no format reads, and what they would need.


def _refuse_lists_of_answers(values: Values) -> None:
    if not best_named((path for path, found in values.items() if are_texts(found)), QUESTIONS):
        return
    for path, found in values.items():
        items = [item for value in found for item in value] if are_lists(found) else []
        is_answer = path.rpartition(".")[2].lower() in ANSWERS or "answers" in words_of(path)
        are_objects = all(isinstance(item, dict) and "role" not in item for item in items)
        if items and is_answer and (are_objects or are_texts(items)):
            keys = f" (objects of {', '.join(items[0])})" if are_objects else ""
            raise NoGuessError(f"{path} holds a list of answers{keys}: write one row for each, or choose one")


def _refuse_no_turns(path: str, values: Values) -> None:
    """Raise NoGuessError for lists of questions alone, or of texts that begin with the name of a speaker."""
    others = [name for name in values if name != path and {"question", "prompt"} & {*words_of(name)}]
    if others and {len(value) for value in values[path]} <= {1, 2} and not are_texts(values[others[0]]):
        raise NoGuessError(
            f"{path} holds texts that seem to be questions alone (there is {others[0]}), and no column holds answers: "
            f"{_needed(path, 'questions')}; if every other text is an answer, this reads them: format: table, "
            f"columns: {{messages: {path}}}"
        )
    texts = [text for value in values[path] for text in value]
    if sum(speaker_of(text.partition(":")[0]) is not None for text in texts) > 0.8 * len(texts):
        raise NoGuessError(
            f"the texts in {path} begin with a speaker, as {texts[0][:40]!r}: write messages with a role and a content"
        )


def _refuse_items(values: Values) -> None:
    """Raise NoGuessError for lists whose items have no role: pairs, or keys that are the speakers."""
    for path, found in values.items():
        parts = [item for value in found if isinstance(value, list) for item in value]
        if parts and all(isinstance(item, list) and len(item) == 2 and are_texts(item) for item in parts):
            raise NoGuessError(f"{path} holds pairs of texts: write all texts of a row as one list, or as messages")
        fields = by_path(item for item in parts if isinstance(item, dict))
        speakers = [name for name in fields if speaker_of(name) in ("user", "assistant")]
        if len({speaker_of(name) for name in speakers}) == 2:
            raise NoGuessError(
                f"the items of {path} have the keys {', '.join(speakers)}: write one message per item, with a role and "
                "a content, as {role: user, content: …}"
            )
        if any(are_texts(column) for column in fields.values()) and rank(path, LIST_NAMES) is not None:
            raise NoGuessError(
                f"the items of {path} have {', '.join(fields)}, but none says who speaks: add a role to each"
            )


def _refuse_one_side(values: Values) -> None:
    """Raise NoGuessError for lists of questions, or of answers, in rows that have no other text."""
    lists = [path for path, found in values.items() if are_text_lists(found)]
    if not lists or text_columns(values, MIN_TEXT):
        return
    path = (best_named(lists, (*LISTS_OF_QUESTIONS, *LISTS_OF_ANSWERS)) or lists)[0]
    words = {word for name in values for word in words_of(name)}
    what, other = ("answers", "questions") if words & {"answer", "answers", "choices"} else ("questions", "answers")
    raise NoGuessError(f"{path} seems to hold {what} alone, and no column holds {other}: {_needed(path, what)}")


def _needed(path: str, what: str) -> str:
    columns = f"prompt: {path}, response: …" if what == "questions" else f"prompt: …, response: {path}"
    return f"each row needs both, as two texts, or as two lists of as many texts (columns: {{{columns}}})"


def _no_column(values: Values, all_values: Values) -> str:
    texts = text_columns(values, MIN_TEXT)
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
