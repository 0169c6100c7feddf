"""Guesses of rows that hold a question and an answer to it, each as a text or as a list of messages."""

from collections.abc import Sequence
from typing import Any

from chatmill.app.look.guess import (
    Guess,
    NoGuessError,
    Values,
    are_identifiers,
    are_texts,
    best_named,
    mean_length,
    rank,
    words_of,
)
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
_QUERIES = ("input", "context", "passage", "document", "article", "background")
_SYSTEMS = ("system", "system_prompt", "system_message", "sys", "persona")
_LABELS = ("label", "category", "class", "topic", "tag", "intent", "sentiment", "emotion", "source", "lang", "language")
_TOOLS = ("tools", "functions")
_GROUPS = ("group", "thread_id", "conversation_id", "dialogue_id", "dialog_id", "session_id", "document_id", "doc_id")
_MAX_LABELS = 20  # different texts of a column of labels
_ROWS_FOR_LABELS = 60
MIN_TEXT = 20  # characters of a text, on average; shorter ones may be dates and names


def pairs(values: Values, *, named: bool) -> list[Guess]:
    """The mapping of a question and an answer, by the names of the columns, or else by their order."""
    texts = [path for path, found in values.items() if are_texts(found) or _are_messages(found)]
    texts = [path for path in texts if not _is_id(path, values[path])]
    if not named:
        return _unnamed([path for path in texts if are_texts(values[path]) and not is_label(values[path])])
    answers = best_named(texts, ANSWERS)
    if chosen := _preference(values, answers):
        answers = [chosen, *(path for path in answers if path != chosen)]
    if not answers:
        return []
    answer = answers[0]
    questions = [path for path in best_named(texts, QUESTIONS) if path != answer]
    if not questions:
        return []
    prompt = questions[0]
    is_chosen = "chosen" in words_of(answer)
    guess = Guess(columns={"prompt": prompt, "chosen" if is_chosen else "response": answer})
    written = [path for path, found in values.items() if all(isinstance(value, str) for value in found)]
    _add_query(guess, prompt, [path for path in written if path not in (prompt, answer)], values)
    _check_rivals(guess, prompt, answer, questions, answers, values)
    return [guess]


def _preference(values: Values, answers: Sequence[str]) -> str | None:
    chosen = [path for path in answers if "chosen" in words_of(path)]
    return chosen[0] if chosen and any("rejected" in words_of(path) for path in values) else None


def _unnamed(texts: Sequence[str]) -> list[Guess]:
    named = [path for path in texts if _is_named(path, (*QUESTIONS, *ANSWERS, *_QUERIES, *_LABELS))]
    nameless = [path for path in texts if path.startswith("column ")]  # below an empty cell of a header
    is_half = [*named, *nameless] == texts and any(_is_named(path, QUESTIONS) for path in named)
    if len(texts) != 2 or (named and not is_half):
        return []
    doubt = f"{texts[0]} is taken to be the question and {texts[1]} the answer, as it comes first"
    return [Guess(columns={"prompt": texts[0], "response": texts[1]}, doubts=[doubt])]


def pair_of_answer(values: Values) -> list[Guess]:
    """The pair of a column that is named as the answer, and of the only other one of texts."""
    texts = text_columns(values)
    answers, others = best_named(texts, ANSWERS), [path for path in texts if rank(path, ANSWERS) is None]
    if len(answers) != 1 or len(others) != 1:
        return []
    doubt = f"prompt: {others[0]} is taken, the only other column of texts than {answers[0]}"
    return [Guess(columns={"prompt": others[0], "response": answers[0]}, doubts=[doubt])]


def text_columns(values: Values) -> list[str]:
    """The columns of texts of some length, which are neither labels nor names of things."""
    texts = [path for path, found in values.items() if are_texts(found) and not is_label(found)]
    return [path for path in texts if not are_identifiers(values[path]) and mean_length(values[path]) >= MIN_TEXT]


def _is_id(path: str, found: Sequence[Any]) -> bool:
    return words_of(path)[:1] in (["id"], ["ids"], ["uuid"], ["hash"], ["url"], ["date"]) or are_identifiers(found)


def refuse_other_answers(values: Values) -> None:
    """Raise NoGuessError where the answers are lists, of which each row needs one."""
    lists = [path for path, found in values.items() if all(isinstance(value, list) for value in found)]
    for path in (path for path in lists if path.rpartition(".")[2].lower() in ANSWERS or "answers" in words_of(path)):
        items = [item for value in values[path] for item in value]
        if items and (are_texts(items) or all(isinstance(item, dict) and "role" not in item for item in items)):
            keys = f" (objects of {', '.join(items[0])})" if isinstance(items[0], dict) else ""
            raise NoGuessError(f"{path} holds a list of answers{keys}: write one row for each, or choose one")


def is_label(found: Sequence[Any]) -> bool:
    """Whether texts are labels: few different ones, which are short."""
    few = len({*map(str, found)}) <= min(_MAX_LABELS, len(found) / 3)
    return len(found) >= 3 and few and mean_length(found) < _ROWS_FOR_LABELS


def _add_query(guess: Guess, prompt: str, rest: Sequence[str], values: Values) -> None:
    queries = [path for path in best_named(rest, _QUERIES) if not is_label(values[path]) or "input" in words_of(path)]
    if queries:
        guess.columns["query"] = queries[0]
        if queries[0].lower() not in ("input", "context"):
            guess.doubts.append(f"query: {queries[0]} is taken to follow {prompt}")


def _check_rivals(
    guess: Guess, prompt: str, answer: str, questions: Sequence[str], answers: Sequence[str], values: Values
) -> None:
    used = {prompt, answer, *guess.columns.values()}
    for what, taken, found in (("prompt", prompt, questions), ("response", answer, answers)):
        others = [path for path in found if path not in used and "rejected" not in words_of(path)]
        others = [path for path in others if are_texts(values[path]) and not is_label(values[path])]
        if others:
            guess.doubts.append(f"{what}: {taken} is taken; it could also be {', '.join(others)}")
    if is_label(values[answer]) and are_texts(values[answer]):
        kinds = len({*values[answer]})
        guess.doubts.append(f"response: {answer} has only {kinds} different texts: they may be labels, not answers")


def add_common(guess: Guess, values: Values, count: int) -> None:
    """Add the columns that any mapping may have: the system message, history, tools, the other response, groups."""
    used = {*guess.columns.values()}
    texts = [path for path, found in values.items() if are_texts(found) and path not in used]
    lists = [path for path, found in values.items() if path not in used and all(isinstance(v, list) for v in found)]
    systems = [path for path in texts if _is_named(path, _SYSTEMS) and len(values[path]) >= 0.05 * count]
    if systems:
        guess.columns["system"] = systems[0]
    history = [path for path in lists if "history" in words_of(path) and _are_pairs(values[path])]
    if history and "prompt" in guess.columns:
        guess.columns["history"] = history[0]
    tools = [path for path in (*lists, *texts) if _is_named(path, _TOOLS) and _are_tools(values[path])]
    if tools:
        guess.columns["tools"] = tools[0]
    rejected = [path for path in values if "rejected" in words_of(path) and path not in used]
    is_better = any("chosen" in words_of(path) for path in used)
    if is_better and (found := [path for path in rejected if not _is_number(values[path])]):
        guess.columns["rejected"] = found[0]
    groups = [path for path in values if path.rpartition(".")[2].lower() in _GROUPS and _repeats(values[path])]
    if groups and groups[0] not in used:
        guess.columns["group"] = groups[0]
        guess.doubts.append(f"group: rows with an equal {groups[0]} are kept on the same side of the split")


def _is_named(path: str, names: Sequence[str]) -> bool:
    return rank(path, names) is not None and path.rpartition(".")[2].lower() in names


def _is_number(found: Sequence[Any]) -> bool:
    return any(isinstance(value, int | float) for value in found)


def _repeats(found: Sequence[Any]) -> bool:
    return 1 < len({*map(str, found)}) < 0.9 * len(found)


def _are_messages(found: Sequence[Any]) -> bool:
    lists = [value for value in found if value]
    return bool(lists) and all(
        isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value)
        for value in lists
    )


def _are_pairs(found: Sequence[Any]) -> bool:
    return all(isinstance(pair, list) and len(pair) == 2 for value in found for pair in value)


def _are_tools(found: Sequence[Any]) -> bool:
    try:
        return any(tool_names(value) for value in found)
    except UnusableRowError:
        return False
