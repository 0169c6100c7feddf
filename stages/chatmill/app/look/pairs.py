"""Guesses of rows that hold questions and answers to them: texts, lists of texts, or lists of messages."""

from collections.abc import Callable, Sequence
from typing import Any

from chatmill.app.look.guess import (
    MIN_SHARE,
    Guess,
    Values,
    are_identifiers,
    are_labels,
    are_lists,
    are_texts,
    best_named,
    is_named,
    mean_length,
    text_columns,
    words_of,
)
from chatmill.app.look.lists import LIST_NAMES
from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import tool_names

QUESTIONS = (
    "prompt", "question", "instruction", "query", "q", "user", "human", "customer", "problem", "input", "source", "src",
    "utterance", "request", "post", "ask", "title", "task", "message", "inputs", "instructions", "pregunta", "frage",
    "domanda", "pergunta", "вопрос", "问题", "問題", "質問", "질문", "提问",
)  # fmt: skip
ANSWERS = (
    "completion", "response", "answer", "output", "a", "reply", "assistant", "bot", "target", "tgt", "solution",
    "agent", "chosen", "completions", "responses", "outputs", "answers",
    "gpt", "model", "label", "result", "respuesta", "antwort",
    "risposta", "resposta", "ответ", "回答", "答案", "답변", "回复", "comment", "explanation", "summary",
)  # fmt: skip
LISTS_OF_QUESTIONS = (*QUESTIONS, "questions", "prompts", "queries", "turns")
LISTS_OF_ANSWERS = (*ANSWERS, "choices", "reference", "references", "replies")
_QUERIES = ("input", "context", "passage", "document", "article", "background")
_SYSTEMS = ("system", "system_prompt", "system_message", "sys", "persona")
_LABELS = ("label", "category", "class", "topic", "tag", "intent", "sentiment", "emotion", "source", "lang", "language")
_GROUPS = ("group", "thread_id", "conversation_id", "dialogue_id", "dialog_id", "session_id", "document_id", "doc_id")
_NO_TEXTS = {
    "tags", "labels", "keywords", "options", "choices", "answers", "ids", "categories", "languages", "entities",
}  # fmt: skip
MIN_TEXT = 20  # characters of a text, on average; shorter ones may be dates and names
_MIN_LISTED = 8  # the same of a text in a list; shorter ones are labels
_MIN_ANSWERED = 0.2  # share of the rows that have lists of answers


def named_pair(values: Values) -> Guess | None:
    """The mapping of a question and an answer that are named so, each a text or a list of messages."""
    texts = [path for path, found in values.items() if are_texts(found) or _are_messages(found)]
    texts = [path for path in texts if not _is_id(path, values[path])]
    answers = best_named(texts, ANSWERS)
    if any("rejected" in words_of(path) for path in values):
        answers.sort(key=lambda path: "chosen" not in words_of(path))
    questions = [path for path in best_named(texts, QUESTIONS) if path not in answers[:1]]
    if not answers or not questions:
        return None
    prompt, answer = questions[0], answers[0]
    guess = Guess(columns={"prompt": prompt, "chosen" if "chosen" in words_of(answer) else "response": answer})

    # What follows the question, as its context does.
    written = [path for path, found in values.items() if all(isinstance(value, str) for value in found)]
    queries = best_named([path for path in written if path not in (prompt, answer)], _QUERIES)
    if queries := [path for path in queries if not are_labels(values[path]) or "input" in words_of(path)]:
        guess.columns["query"] = queries[0]
        if queries[0].lower() not in ("input", "context"):
            guess.doubts.append(f"query: {queries[0]} is taken to follow {prompt}")

    # What else it could be.
    plain = [path for path in text_columns(values) if path not in guess.columns.values()]
    for what, taken, found in (("prompt", prompt, questions), ("response", answer, answers)):
        others = [path for path in found if path in plain and "rejected" not in words_of(path)]
        if others:
            guess.doubts.append(f"{what}: {taken} is taken; it could also be {', '.join(others)}")
    if are_labels(values[answer]) and are_texts(values[answer]):
        kinds = len({*values[answer]})
        guess.doubts.append(f"response: {answer} has only {kinds} different texts: they may be labels, not answers")
    return guess


def _are_messages(found: Sequence[Any]) -> bool:
    messages = [message for value in found if isinstance(value, list) for message in value]
    return are_lists(found) and bool(messages) and all(isinstance(one, dict) and "role" in one for one in messages)


def _is_id(path: str, found: Sequence[Any]) -> bool:
    return words_of(path)[:1] in (["id"], ["ids"], ["uuid"], ["hash"], ["url"], ["date"]) or are_identifiers(found)


def pair_in_order(values: Values) -> Guess | None:
    """The mapping of the only two columns of texts, of which at most one is named."""
    texts = text_columns(values)
    answers = best_named(texts, ANSWERS)
    if len(texts) != 2 or len(answers) > 1:
        return None
    if answers and all(mean_length(values[path]) >= MIN_TEXT for path in texts):
        prompt = next(path for path in texts if path != answers[0])
        doubt = f"prompt: {prompt} is taken, the only other column of texts than {answers[0]}"
        return Guess(columns={"prompt": prompt, "response": answers[0]}, doubts=[doubt])
    named = [path for path in texts if is_named(path, (*QUESTIONS, *ANSWERS, *_QUERIES, *_LABELS))]
    is_half = is_named(texts[0], QUESTIONS) and texts[1].startswith("column ")  # below an empty cell of a header
    if named and not is_half:
        return None
    doubt = f"{texts[0]} is taken to be the question and {texts[1]} the answer, as it comes first"
    return Guess(columns={"prompt": texts[0], "response": texts[1]}, doubts=[doubt])


def list_pair(values: Values, count: int) -> Guess | None:
    """The mapping of a list of questions and a list of answers, of which some rows may have none."""
    lists = {path: len(found) / count for path, found in values.items() if are_text_lists(found)}
    questions = best_named((path for path, share in lists.items() if share >= MIN_SHARE), LISTS_OF_QUESTIONS)
    answers = best_named((path for path, share in lists.items() if share >= _MIN_ANSWERED), LISTS_OF_ANSWERS)
    found = [(prompt, answer) for answer in answers for prompt in questions if prompt != answer]
    if not found:
        return None
    prompt, answer = found[0]
    doubt = f"the texts in {prompt} are taken to be questions, and those in {answer} the answers to them"
    return Guess(columns={"prompt": prompt, "response": answer}, doubts=[doubt])


def are_text_lists(found: Sequence[Any]) -> bool:
    return are_lists(found) and are_texts([text for value in found for text in value])


def alternating_lists(values: Values) -> list[Guess]:
    """The mappings of columns that hold lists of texts by two speakers in turn, the likeliest first."""
    found = []
    for path, column in values.items():
        texts = [text for value in column if isinstance(value, list) for text in value]
        is_long = len(texts) >= 1.5 * len(column) and mean_length(texts) >= _MIN_LISTED
        if is_long and are_text_lists(column) and not _NO_TEXTS & {*words_of(path)}:
            found.append(path)
    found.sort(key=lambda path: -mean_length(values[path]))
    order = best_named(found, LIST_NAMES) or found
    doubts = [f"{path}: its texts are taken to alternate, and the first one to be the user's" for path in order]
    return [Guess(columns={"messages": path}, doubts=[doubt]) for path, doubt in zip(order, doubts, strict=True)]


# Columns that any mapping may have.


def add_common(guess: Guess, values: Values, count: int) -> None:
    """Add the system message, history, tools, the other response, groups, where there are such columns."""

    def add(name: str, paths: Sequence[str], fits: Callable[[Sequence[Any]], bool]) -> None:
        free = (path for path in paths if path not in guess.columns.values() and fits(values[path]))
        if path := next(free, None):
            guess.columns[name] = path

    is_better = any("chosen" in words_of(path) for path in guess.columns.values())
    add("system", _named(values, _SYSTEMS), lambda found: are_texts(found) and len(found) >= 0.05 * count)
    if "prompt" in guess.columns:
        add("history", [path for path in values if "history" in words_of(path)], _are_pairs)
    add("tools", _named(values, ("tools", "functions")), _are_tools)
    if is_better:
        rejected = [path for path in values if "rejected" in words_of(path)]
        add("rejected", rejected, lambda found: not any(isinstance(value, int | float) for value in found))
    add("group", _named(values, _GROUPS), lambda found: 1 < len({*map(str, found)}) < 0.9 * len(found))
    if group := guess.columns.get("group"):
        guess.doubts.append(f"group: rows with an equal {group} are kept on the same side of the split")


def _named(values: Values, names: Sequence[str]) -> list[str]:
    return [path for path in values if is_named(path, names)]


def _are_pairs(found: Sequence[Any]) -> bool:
    return are_lists(found) and all(isinstance(pair, list) and len(pair) == 2 for value in found for pair in value)


def _are_tools(found: Sequence[Any]) -> bool:
    try:
        return any(tool_names(value) for value in found if isinstance(value, list | str))
    except UnusableRowError:
        return False
