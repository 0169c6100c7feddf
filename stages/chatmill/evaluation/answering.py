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


def is_correct(skill: dict[str, Any], reply: str) -> bool:
    """Whether a reply is correct according to the `skill` of its record.

    With `answers`, only these replies are correct, apart from surrounding white space. With `contains`, a reply is
    correct if it contains these words and consists of one to MAX_SENTENCES complete sentences.
    """
    reply = reply.strip()
    if "answers" in skill:
        return reply in skill["answers"]
    has_words = all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply) for word in skill["contains"])
    return has_words and _is_sentences(reply)


def _is_sentences(text: str) -> bool:
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text)]
    return 1 <= len(ends) <= MAX_SENTENCES and ends[-1] == len(text)


def last_turn_fits(session: ChatSession, prompt: Conversation, max_tokens: int) -> bool:
    """Whether a prompt fits into the context, with an answer, at least without its earlier turns."""
    last_turn = [message for message in prompt[:-1] if message.role == "system"] + prompt[-1:]
    return session.fits(last_turn, max_tokens)


class Answer(NamedTuple):
    text: str
    correct: bool
    stopped: bool  # whether the model ended it itself


def answer_questions(session: ChatSession, questions: list[Question], max_tokens: int) -> list[Answer]:
    result = []
    for question in progress(questions, f"skills with {session.engine.name}", unit="question"):
        message, stopped = session.greedy_reply(question.conversation, max_tokens)
        result.append(Answer(message.text, is_correct(question.skill, message.text), stopped))
    return result


def wrong_answers(questions: list[Question], answers: list[Answer]) -> dict[str, list[dict[str, str]]]:
    """Up to MAX_WRONG different wrong answers to questions of each skill, with what is correct."""
    result: dict[str, list[dict[str, str]]] = defaultdict(list)
    for question, answer in zip(questions, answers, strict=True):
        shown, skill = result[question.skill["name"]], question.skill
        if answer.correct or len(shown) == MAX_WRONG or answer.text in (one["answer"] for one in shown):
            continue
        expected = " or ".join(skill["answers"]) if "answers" in skill else ", ".join(skill["contains"])
        shown.append({"question": question.conversation[-1].text, "answer": answer.text, "expected": expected})
    return {name: shown for name, shown in sorted(result.items()) if shown}


def accuracies(questions: list[Question], correct: list[bool], phrasing: str = "known") -> dict[str, Estimate]:
    """Share of correct answers by skill, and `macro`, their mean; empty without questions."""
    by_skill = defaultdict(list)
    for question, answered in zip(questions, correct, strict=True):
        if question.skill["phrasing"] == phrasing:
            by_skill[question.skill["name"]].append(answered)
    shares = {name: share(by_skill[name]) for name in sorted(by_skill)}
    return {"macro": mean_of_shares(list(shares.values())), **shares} if shares else {}


def skills_sections(questions: list[Question], answers: list[Answer]) -> dict[str, Any]:
    """The sections skills and wrong_answers of the metrics; none without questions."""
    if not questions:
        return {}
    correct = [answer.correct for answer in answers]
    held_back = accuracies(questions, correct, "held_back")
    return {
        "skills": accuracies(questions, correct) | {"held_back": held_back},
        "wrong_answers": wrong_answers(questions, answers),
    }


def answer_prompts(
    session: ChatSession, prompts: Path, tools: Collection[str], max_tokens: int
) -> list[dict[str, Any]]:
    """The answers to the prompts in a file, one per line, each a chat in which these tools are declared."""
    result = []
    for line in filter(str.strip, read_text(prompts).split("\n")):
        prompt = declare_tools([Message.from_text("user", line)], tools)
        if last_turn_fits(session, prompt, max_tokens):
            message, stopped = session.greedy_reply(prompt, max_tokens)
            result.append({"prompt": line, "answer": message.text, "stopped": stopped})
    return result


class TalkAnswer(NamedTuple):
    """The model's reply to a conversation of the test set."""

    conversation: Conversation  # without its last reply
    reply: str
    true: str  # the last reply
    stopped: bool  # whether the model ended it itself

    def sample(self) -> dict[str, Any]:
        """For the report: the last prompt, the model's reply, the true reply, and how many messages came before."""
        *before, prompt = self.conversation
        found = {"prompt": prompt.text, "answer": self.reply, "stopped": self.stopped}
        return found | {"true": self.true, "messages_before": len(before)}


def answer_talk(session: ChatSession, talk: Iterable[Conversation], max_tokens: int) -> list[TalkAnswer]:
    """The model's last reply to each conversation whose last message fits into the context."""
    result = []
    for *prompt, true in progress(list(talk), "answers to look for in the training data", unit="answer"):
        if true.role == "assistant" and prompt and last_turn_fits(session, prompt, max_tokens):
            message, stopped = session.greedy_reply(prompt, max_tokens)
            result.append(TalkAnswer(prompt, message.text, true.text, stopped))
    return result


class Answers(NamedTuple):
    """What a model answered to a sample of the test set, and to free prompts."""

    skills: list[Answer]
    talk: list[TalkAnswer]
    free: list[dict[str, Any]]

    @property
    def stopped(self) -> list[bool]:
        """Which answers the model ended itself: those to skills, and to free prompts or else to talk."""
        others = [one["stopped"] for one in self.free] or [one.stopped for one in self.talk]
        return [one.stopped for one in self.skills] + others

    @property
    def replies(self) -> list[str]:
        """The texts of what has no single right answer."""
        return [one["answer"] for one in self.free] + [one.reply for one in self.talk]

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The samples for the report."""
        return self.free + [one.sample() for one in self.talk[:MAX_SAMPLES]]


def answer_all(
    session: ChatSession, sample: TestSample, prompts: Path, tools: Collection[str], max_tokens: int
) -> Answers:
    """The answers to a sample; free prompts are asked where it has questions to a persona."""
    return Answers(
        answer_questions(session, sample.questions, max_tokens),
        answer_talk(session, sample.talk, max_tokens),
        answer_prompts(session, prompts, tools, max_tokens) if sample.talk_questions else [],
    )


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
            for message, answer in pairwise(conversation):
                if message.role == "user" and answer.role == "assistant":
                    answers.setdefault(fold(message.text), answer.text)
        self._answers = list(answers.values())
        counts = [Counter(message.split()) for message in answers]
        self._weights = {
            word: log((1 + len(counts)) / (1 + documents)) + 1
            for word, documents in Counter(w for c in counts for w in c).items()
        }
        postings: dict[str, list[tuple[int, float]]] = {word: [] for word in self._weights}
        for index, count in enumerate(counts):
            vector = {word: times * self._weights[word] for word, times in count.items()}
            norm = sum(value * value for value in vector.values()) ** 0.5
            for word, value in vector.items():
                postings[word].append((index, value / norm))
        self._postings = {
            word: (np.array([i for i, _ in entries]), np.array([value for _, value in entries]))
            for word, entries in postings.items()
        }

    def reply(self, conversation: Conversation) -> str:
        """The answer to the message nearest to the last one; empty without training conversations."""
        scores = np.zeros(len(self._answers))
        for word, times in Counter(fold(conversation[-1].text).split()).items():
            if word in self._postings:
                indices, values = self._postings[word]
                scores[indices] += times * self._weights[word] * values
        return self._answers[int(scores.argmax())] if self._answers else ""
