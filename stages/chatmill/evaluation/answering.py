"""The answers of a model to what evaluation asks, all of them greedy, and whether they are correct."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatmill.conversation import Conversation, Message, Record, declare_tools, parse
from chatmill.evaluation.held_out_set import Question, TestSample
from chatmill.evaluation.intervals import Estimate, mean_of_shares, share
from chatmill.inference.chat_session import ChatSession
from chatmill.pipeline.manifest import read_text
from chatmill.pipeline.progress import progress
from chatmill.talk.folding import fold, letters

MAX_SENTENCES = 8
MAX_WRONG = 3
MAX_SAMPLES = 20  # of the replies to the talk of the test set, for the report


class Answer(NamedTuple):
    text: str
    stopped: bool  # whether the model ended it itself


def fits(session: ChatSession, prompt: Conversation, max_tokens: int) -> bool:
    """Whether a prompt fits into the context, with an answer, at least without its earlier turns."""
    last_turn = [message for message in prompt[:-1] if message.role == "system"] + prompt[-1:]
    return session.fits(last_turn, max_tokens)


def answer(session: ChatSession, prompts: Sequence[Conversation], max_tokens: int, title: str) -> list[Answer]:
    replies = (session.greedy_reply(prompt, max_tokens) for prompt in progress(prompts, title, unit="answer"))
    return [Answer(message.text, stopped) for message, stopped in replies]


def answer_questions(session: ChatSession, questions: Sequence[Question], max_tokens: int) -> list[Answer]:
    return answer(session, [one.conversation for one in questions], max_tokens, f"skills with {session.engine.name}")


def graded(questions: Sequence[Question], answers: Sequence[Answer]) -> list[bool]:
    """Which answers are correct."""
    return [is_correct(one.skill, given.text) for one, given in zip(questions, answers, strict=True)]


def is_correct(skill: dict[str, Any], reply: str) -> bool:
    """Whether a reply is correct according to the `skill` of its record.

    With `answers`, only these replies are correct, apart from surrounding white space. With `contains`, a reply is
    correct if it contains these words and consists of one to MAX_SENTENCES complete sentences.
    """
    reply = reply.strip()
    if "answers" in skill:
        return reply in skill["answers"]
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", reply)]
    has_words = all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply) for word in skill["contains"])
    return has_words and 1 <= len(ends) <= MAX_SENTENCES and ends[-1] == len(reply)


def accuracies(questions: Sequence[Question], correct: Sequence[bool], phrasing: str = "known") -> dict[str, Estimate]:
    """Share of correct answers by skill, and `macro`, their mean; empty without questions."""
    by_skill = defaultdict(list)
    for question, answered in zip(questions, correct, strict=True):
        if question.skill["phrasing"] == phrasing:
            by_skill[question.skill["name"]].append(answered)
    shares = {name: share(by_skill[name]) for name in sorted(by_skill)}
    return {"macro": mean_of_shares(list(shares.values())), **shares} if shares else {}


def skills_sections(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """The sections skills and wrong_answers of the metrics; none without questions."""
    if not questions:
        return {}
    correct = graded(questions, answers)
    wrong = defaultdict[str, dict[str, dict[str, str]]](dict)  # by skill and answer
    for question, given, is_right in zip(questions, answers, correct, strict=True):
        shown, skill = wrong[question.skill["name"]], question.skill
        if not is_right and len(shown) < MAX_WRONG and given.text not in shown:
            expected = " or ".join(skill["answers"]) if "answers" in skill else ", ".join(skill["contains"])
            asked = question.conversation[-1].text
            shown[given.text] = {"question": asked, "answer": given.text, "expected": expected}
    return {
        "skills": accuracies(questions, correct) | {"held_back": accuracies(questions, correct, "held_back")},
        "wrong_answers": {name: list(shown.values()) for name, shown in sorted(wrong.items()) if shown},
    }


def read_prompts(session: ChatSession, file: Path, tools: Collection[str], max_tokens: int) -> list[Conversation]:
    """The prompts in a file that fit, one per line, each as a chat in which these tools are declared."""
    lines = filter(str.strip, read_text(file).split("\n"))
    prompts = (declare_tools([Message.from_text("user", line)], tools) for line in lines)
    return [prompt for prompt in prompts if fits(session, prompt, max_tokens)]


class Answers(NamedTuple):
    skills: list[Answer]
    talk: list[Answer]
    free: list[Answer]
    shown: list[dict[str, Any]]  # samples for the report


def answer_sample(
    session: ChatSession, sample: TestSample, prompts: Path, tools: Collection[str], max_tokens: int
) -> Answers:
    """The answers to skills, to talk, and, where the sample has questions to a persona, to free prompts."""
    talk = [one[:-1] for one in sample.talk]
    to_skills = answer_questions(session, sample.questions, max_tokens)
    to_talk = answer(session, talk, max_tokens, "answers to look for in the training data")
    free = read_prompts(session, prompts, tools, max_tokens) if sample.talk_questions else []
    to_free = answer(session, free, max_tokens, "free prompts")
    shown = [_shown(*one) for one in zip(free, to_free, strict=True)]
    for asked, given, (*_, true) in list(zip(talk, to_talk, sample.talk, strict=True))[:MAX_SAMPLES]:
        shown.append(_shown(asked, given) | {"true": true.text, "messages_before": len(asked) - 1})
    return Answers(to_skills, to_talk, to_free, shown)


def _shown(prompt: Conversation, given: Answer) -> dict[str, Any]:
    return {"prompt": prompt[-1].text, "answer": given.text, "stopped": given.stopped}


# The sense rate: the share of replies that make sense for a persona's user, who speaks in phrasings never trained on.

KINDS = ("first", "later", "noisy", "recall")
TRAINED_GROUPS = "train/talk/"  # begin of the groups of the conversations that the format talk makes for training


def measure_sense(
    session: ChatSession, asked: Mapping[str, Sequence[Question]], train: Iterable[Record], max_tokens: int
) -> dict[str, Any]:
    """The sections `sense` and `recall`, from questions of each kind; `parrot` repeats training answers."""
    if not asked:
        return {}
    parrot = Parrot(parse(one.text) for one in train if one.group.startswith(TRAINED_GROUPS))

    def shares(name: str, reply: Callable[[Conversation], str]) -> dict[str, Estimate]:
        result = {}
        for kind in (kind for kind in KINDS if kind in asked):
            questions = progress(asked[kind], f"{name}: {kind}", unit="question")
            result[kind] = share([makes_sense(one.skill, reply(one.conversation)) for one in questions])
        return result

    own = shares("persona", lambda conversation: session.greedy_reply(conversation, max_tokens)[0].text)
    repeated = shares("parrot", parrot.reply)
    recall = {"recall": own.pop("recall")} if "recall" in own else {}
    repeated.pop("recall", None)  # it cannot recall what it was never told
    return ({"sense": {**own, "parrot": repeated}} if own else {}) | recall


def makes_sense(skill: dict[str, Any], reply: str) -> bool:
    """Whether a reply is an answer of the intent that was meant, or says the fact that was asked for."""
    if any(re.fullmatch(accepted, letters(reply)) for accepted in skill["accepted"]):
        return True
    return bool(skill.get("contains")) and is_correct(skill, reply)


class Parrot:
    """Answers as the training conversation whose user's message is nearest, by the cosine of TF-IDF vectors."""

    def __init__(self, conversations: Iterable[Conversation]) -> None:
        answers = dict[str, str]()
        for conversation in conversations:
            for message, reply in pairwise(conversation):
                if message.role == "user" and reply.role == "assistant":
                    answers.setdefault(fold(message.text), reply.text)
        self._answers = list(answers.values())
        counts = [Counter(message.split()) for message in answers]
        documents = Counter(word for count in counts for word in count)
        self._weights = {word: log((1 + len(counts)) / (1 + number)) + 1 for word, number in documents.items()}
        postings: dict[str, list[tuple[int, float]]] = {word: [] for word in documents}
        for index, count in enumerate(counts):
            vector = {word: times * self._weights[word] for word, times in count.items()}
            norm = sum(value * value for value in vector.values()) ** 0.5
            for word, value in vector.items():
                postings[word].append((index, value / norm))
        self._postings = {word: tuple(map(np.array, zip(*found, strict=True))) for word, found in postings.items()}

    def reply(self, conversation: Conversation) -> str:
        """The answer to the message nearest to the last one; empty without training conversations."""
        scores = np.zeros(len(self._answers))
        for word, times in Counter(fold(conversation[-1].text).split()).items():
            if word in self._postings:
                indices, values = self._postings[word]
                scores[indices] += times * self._weights[word] * values
        return self._answers[int(scores.argmax())] if self._answers else ""
