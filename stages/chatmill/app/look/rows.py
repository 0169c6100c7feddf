"""Guesses which formats may read the rows of a table, and by which columns: trials tell which one does."""

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import mean
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
    is_named,
    items_of,
    mean_length,
    name_speakers,
    speaker_of,
    text_columns,
    words_of,
)
from chatmill.app.look.texts import check_rendered
from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import TRAIN_FIELDS, content_bytes, value_at
from chatmill.datasets.formats.registry import COLUMNS
from chatmill.datasets.formats.table import from_json
from chatmill.datasets.formats.trees import id_of, order_of


def guess_rows(rows: Sequence[Any]) -> list[Guess]:
    """What may read rows, the likeliest first: by names and structure, or else by texts. Raises NoGuessError."""
    if not rows:
        raise NoGuessError("no row can be read")
    all_values = by_path(rows)
    for path in best_named(all_values, LIST_NAMES):
        all_values[path] = [from_json(value) if isinstance(value, str) else value for value in all_values[path]]
    values = frequent(all_values, len(rows))
    published = published_formats(values)
    found = (
        conversations(values)
        or single_messages(rows, values)
        or alternating_lists(values)
        or ([] if published else [unnamed_texts(values)])
    )
    return published + [version for guess in found for version in _versions(guess, all_values)]


_CALL_OF_GSM8K = re.compile(r"<<[^<>]*=[^<>]*>>")


def published_formats(values: Values) -> list[Guess]:
    """The formats that are no mapping, and seem to be there by their columns."""
    chosen, answers = values.get("chosen", []), values.get("answer", [])
    bursts = [burst for burst in items_of(values.get("messages", [])[:1]) if isinstance(burst, list)]
    seen = {
        "oasst": "message_tree_id" in values or {"role", "text", "replies"} <= values.keys(),
        "chitchat": any({"text", "sender"} <= by_path(burst).keys() for burst in bursts),
        "hh": "prompt" not in values and are_texts(chosen) and "\n\nAssistant:" in chosen[0],
        "gsm8k": "question" in values and are_texts(answers) and any(map(_CALL_OF_GSM8K.search, answers)),
        "personachat": {"persona", "chat"} <= {path.lower() for path in values},
    }
    return [Guess(format=name) for name, is_there in seen.items() if is_there]


# Lists of messages.

LIST_NAMES = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns", "utterances", "log")
_ROLE_NAMES = ("role", "from", "speaker", "author", "sender", "who", "name", "user", "type", "agent", "participant")
_CONTENT_NAMES = ("content", "value", "text", "utterance", "message", "body", "msg", "turn", "transcript", "sentence")
_FLAGS = ("loss_weight", "loss", "trainable", "training", "trained", "learn", "train_on", "is_trained")
_MAX_ROLE = 40  # characters of a name, on average


def conversations(values: Values) -> list[Guess]:
    """The mappings of lists of messages, and of a pair, which goes first if it has the chosen answer, or lists."""
    named = best_named(values, LIST_NAMES)
    order = sorted(values, key=lambda path: (path not in named, -mean_length(values[path])))
    lists = [guess for path in order if (guess := message_list(path, values[path])) is not None]
    pair = named_pair(values)
    if pair is None:
        return lists
    is_first = "chosen" in pair.columns or any(are_lists(values[path]) for path in pair.columns.values())
    return [pair, *lists] if is_first else [*lists, pair]


def message_list(path: str, found: Sequence[Any]) -> Guess | None:
    """The mapping of a column of lists of messages; None where they are none."""
    lists = [items_of(value) if are_lists(value) else value for value in found if isinstance(value, list) and value]
    messages = items_of(lists)
    if not messages or not all(isinstance(message, dict) for message in messages) or 2 * len(lists) < len(found):
        return None
    fields = by_path(messages)
    role = _role_of(frequent(fields, len(messages), 0.95))
    sizes = {
        name: mean(map(content_bytes, column))
        for name, column in frequent(fields, len(messages), 0.5).items()
        if name != role and (are_texts(column) or is_named(name, _CONTENT_NAMES))
    }
    texts = sorted((name for name in sizes if sizes[name]), key=lambda name: -sizes[name])
    if role is None or not texts:
        return None
    content = (best_named(texts, _CONTENT_NAMES) or texts)[0]
    guess = Guess(columns={"messages": path, "role": role, "content": content})
    if others := [name for name in texts if name != content and sizes[name] > 0.5 * sizes[content]]:
        guess.doubts.append(f"content: {content} is taken, but there are texts in {', '.join(others)} as well")
    flags = best_named([name for name, column in fields.items() if all(value in (0, 1) for value in column)], _FLAGS)
    if flags and not any(name in fields for name in TRAIN_FIELDS):
        guess.columns["train"] = flags[0]
        guess.doubts.append(f"train: {flags[0]} is taken to say whether a message is trained")
    name_speakers(guess, [[str(value_at(message, role, None)) for message in value] for value in lists])
    return guess


def _role_of(fields: Values) -> str | None:
    """The field of the speaker, which has names that are known, or a name of its own and several short values."""
    named = best_named(fields, _ROLE_NAMES)
    scores: dict[str, float] = {}
    for name, column in fields.items():
        if all(type(value) in (str, int) for value in column) and mean_length(column) <= _MAX_ROLE:
            known = sum(speaker_of(str(value)) is not None for value in column) / len(column)
            if known >= 0.5 or (name in named and len({*column}) > 1):
                scores[name] = 3 * known - (named.index(name) if name in named else len(named)) / 10
    return max(scores, key=lambda name: scores[name], default=None)


# Rows that are messages, and say of which conversation.

_CONVERSATIONS = ("conversation", "dialogue", "dialog", "thread", "session", "chat", "ticket", "channel", "id")
TIMES = ("timestamp", "datetime", "date", "time", "created", "sent", "ts")
_ORDERS = ("order", "turn", "index", "position", "seq", "sequence", "step", "number", *TIMES, "id")
MAX_CHAT = 300  # characters of a message in a chat, on average


def single_messages(rows: Sequence[Any], values: Values) -> list[Guess]:
    """The mapping of rows that are messages, where a column names conversations in which several speak."""
    for conversation in best_named(values, _CONVERSATIONS):
        by_id = defaultdict[str | None, list[Any]](list)
        for row in rows:
            by_id[id_of(row, conversation)].append(row)
        threads = [*by_id.values()]
        columns = {"conversation": conversation}
        for order in best_named((path for path in values if path != conversation), _ORDERS):
            with suppress(UnusableRowError):
                ordered = [sorted(thread, key=lambda row: order_of(row, order)) for thread in threads]
                places = sum(len({order_of(row, order) for row in thread}) for thread in threads)
                if places > 0.9 * len(rows):
                    columns["order"], threads = order, ordered
                    break
        guess = message_list(".", threads)
        if guess is not None and guess.columns["role"] not in columns.values():
            role = guess.columns["role"]
            speakers = [{str(value_at(row, role, None)) for row in thread} for thread in threads]
            if sum(len(names) > 1 for names in speakers) >= 0.5 * len(threads):
                guess.columns = columns | {name: path for name, path in guess.columns.items() if name != "messages"}
                return [guess]
    return []


# A question and its answer.

_QUESTIONS = (
    "prompt", "question", "instruction", "query", "q", "user", "human", "customer", "problem", "input", "source", "src",
    "utterance", "request", "post", "ask", "title", "task", "message", "prompts", "questions", "inputs", "instructions",
)  # fmt: skip
_ANSWERS = (
    "completion", "response", "answer", "output", "a", "reply", "assistant", "bot", "target", "tgt", "solution",
    "agent", "chosen", "completions", "responses", "outputs", "answers", "targets", "replies", "choices", "gpt",
    "label", "result", "comment", "explanation", "summary",
)  # fmt: skip
_QUERIES = ("input", "context", "passage", "document", "article", "background")
_IDS = {"id", "ids", "uuid", "hash", "url", "date"}


def named_pair(values: Values) -> Guess | None:
    """The mapping of a question and an answer that are named so, each a text or a list of texts or of messages."""
    sides = [path for path, found in values.items() if _is_side(found) and not {*words_of(path)[:1]} & _IDS]
    answers = best_named(sides, _ANSWERS)
    if any("rejected" in words_of(path) for path in values):
        answers = [path for path in answers if "chosen" in words_of(path)] + answers
    questions = [path for path in best_named(sides, _QUESTIONS) if path not in answers[:1]]
    if not answers or not questions:
        return None
    prompt, answer = questions[0], answers[0]
    guess = Guess(columns={"prompt": prompt, "chosen" if "chosen" in words_of(answer) else "response": answer})
    texts = [path for path in text_columns(values) if path not in (prompt, answer)]
    inputs = [path for path in values if "input" in words_of(path) and isinstance(values[path][0], str)]
    if queries := [path for path in best_named([*inputs, *texts], _QUERIES) if path not in (prompt, answer)]:
        guess.columns["query"] = queries[0]
        if not is_named(queries[0], ("input", "context")):
            guess.doubts.append(f"query: {queries[0]} is taken to follow {prompt}")
    others = [path for path in (*questions, *answers) if path in texts and path not in queries[:1]]
    if others := [path for path in others if "rejected" not in words_of(path)]:
        guess.doubts.append(f"{prompt} and {answer} are taken; it could also be {', '.join(others)}")
    return guess


def _is_side(found: Sequence[Any]) -> bool:
    items = items_of(found)
    are_messages = bool(items) and all(isinstance(item, dict) and "role" in item for item in items)
    return are_texts(found) or (are_lists(found) and (are_messages or are_texts(items)))


# Texts of two speakers in turn, or of none.

_TEXT_NAMES = ("text", "content", "document", "body", "article", "passage", "story", "page", "raw", "paragraph", "post")
_MIN_TEXT = 20  # characters of a document, on average; shorter texts may be names


def alternating_lists(values: Values) -> list[Guess]:
    """The mappings of columns that hold lists of texts by two speakers in turn. Raises NoGuessError for questions."""
    lists = {path: items_of(found) for path, found in values.items() if are_lists(found)}
    lists = {path: texts for path, texts in lists.items() if are_texts(texts) and len(texts) >= 1.5 * len(values[path])}
    found = best_named(lists, LIST_NAMES) or ([] if text_columns(values) else [*lists])
    for path in found:
        check_rendered(lists[path])
        if any({"question", "prompt"} & {*words_of(name)} and not are_texts(values[name]) for name in values):
            raise _one_side(path)
    doubt = "its texts are taken to alternate, and the first one to be the user's"
    return [Guess(columns={"messages": path}, doubts=[f"{path}: {doubt}"]) for path in found]


def unnamed_texts(values: Values) -> Guess:
    """A question and its answer, where two columns hold texts; documents, where one does. Raises NoGuessError."""
    texts = text_columns(values)
    answers = best_named(texts, _ANSWERS)
    named = best_named(texts, _TEXT_NAMES)
    long = [path for path in texts if path in named or mean_length(values[path]) >= _MIN_TEXT]
    is_document = any(is_named(path, (*_TEXT_NAMES, *_QUERIES)) for path in texts)
    if len(texts) == 2 and (texts == long if len(answers) == 1 else not (answers or is_document)):
        prompt, answer = sorted(texts, key=lambda path: path in answers)
        doubt = f"{prompt} is taken to be the question and {answer} the answer, as there are no others"
        return Guess(columns={"prompt": prompt, "response": answer}, doubts=[doubt])

    longest = max((mean_length(values[path]) for path in long), default=0)
    found = [path for path in named if mean_length(values[path]) >= MIN_SHARE * longest][:1] or long
    if len(found) > 1:
        raise NoGuessError(
            f"of the texts in {', '.join(found)} the names do not say which is which: write format: table, "
            "columns: {prompt: …, response: …}; see the format table in data/README.md"
        )
    for path in found:
        check_rendered(values[path])
    if not {*found} & {*named} and (sides := best_named(found or texts, (*_QUESTIONS, *_ANSWERS))):
        raise _one_side(sides[0])
    if not found:
        raise NoGuessError(
            "no column holds a conversation, or a question and its answer, or texts (columns: "
            f"{', '.join(sorted(values)) or 'none'}): see the format table in data/README.md for what can be mapped"
        )
    doubts = [f"{found[0]} holds texts without marks of speakers: each is taken to be a document"]
    if (times := best_named(values, TIMES)) and longest < MAX_CHAT:
        doubts.append(f"with {times[0]} these may be messages of a chat, but no column names the speakers")
    return Guess(format="documents", columns={"text": found[0]}, doubts=doubts)


def _one_side(path: str) -> NoGuessError:
    return NoGuessError(
        f"{path} seems to hold questions or answers alone, and no column holds the others: each row needs both, as two "
        "texts, or as two lists of as many texts (columns: {prompt: …, response: …}); or read each text as a document: "
        f"format: documents, columns: {{text: {path}}}"
    )


# What any mapping may have, and the formats that are one.

_OTHERS = {
    "system": ("system", "system_prompt", "system_message", "sys", "persona"),
    "history": ("history",),
    "tools": ("tools", "functions"),
    "group": ("group", "thread_id", "conversation_id", "dialogue_id", "session_id", "document_id", "doc_id"),
}
_NAMED = {
    "messages": {"messages": "messages", "role": "role", "content": "content", "system": "system", "tools": "tools"},
    "messages ": {"prompt": "prompt", "response": "completion"},
    **COLUMNS,
}
_OPTIONAL = {"query", "system", "tools"}  # which rows of the named formats may lack


def _versions(guess: Guess, values: Values) -> list[Guess]:
    """The guess with the system message, tools and the like, where there are such columns, and also without them."""
    if guess.format != "table":
        return [guess]
    others = {name: [path for path in values if is_named(path, names)] for name, names in _OTHERS.items()}
    others["system"] = [path for path in others["system"] if are_texts(values[path])]
    others["tools"] = [path for path in others["tools"] if str(values[path][0]).lstrip().startswith("[")]
    others["group"] = [path for path in others["group"] if 1 < len({*map(str, values[path])}) < 0.9 * len(values[path])]
    if any("chosen" in words_of(path) for path in guess.columns.values()):
        others["rejected"] = [path for path in best_named(values, ("rejected",)) if _is_side(values[path])]
    taken = guess.columns.values()
    more = {name: free[0] for name, paths in others.items() if (free := [path for path in paths if path not in taken])}
    full = replace(guess, columns=guess.columns | more, doubts=[*guess.doubts])
    if "group" in more:
        full.doubts.append(f"group: rows with an equal {more['group']} are kept on the same side of the split")
    return [_with_format(version) for version in ([full, guess] if more else [guess])]


def _with_format(guess: Guess) -> Guess:
    """The guess by the format that reads the same columns; else without those that a mapping has by default."""
    if guess.roles or guess.first:
        return guess
    for name, known in _NAMED.items():
        if guess.columns.items() <= known.items() and known.keys() - guess.columns.keys() <= _OPTIONAL:
            return replace(guess, format=name.strip(), columns={})
    columns = {name: path for name, path in guess.columns.items() if name != path or name not in ("role", "content")}
    return replace(guess, columns=columns)
