"""The sense rate: the share of replies that make sense for a persona's user, who speaks in phrasings never trained on.

A reply makes sense if the grammar of the exchange's answers gives it, with the words that the user said. The kinds are
`first` messages, `later` ones that depend on earlier exchanges, `noisy` first ones with typing errors, and `recall`:
questions for a fact that was told some exchanges before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any, TypeVar

import numpy as np

from chatmill.conversation import Conversation, Record, parse
from chatmill.evaluation.held_out_set import Question
from chatmill.evaluation.intervals import Estimate, share
from chatmill.pipeline.progress import progress
from chatmill.talk.grammar import Word, fold
from chatmill.talk.persona import Persona

KINDS = ("first", "later", "noisy", "recall")
TRAINED_GROUPS = "train/talk/"  # begin of the groups of the conversations that the format talk makes for training

Named = TypeVar("Named")


def measure_sense(
    persona: Persona,
    asked: Mapping[str, Sequence[Question]],
    train: Iterable[Record],
    reply: Callable[[Conversation], str],
) -> dict[str, Any]:
    """The sections `sense` and `recall` of the metrics, from questions of each kind to this persona.

    `parrot` repeats training answers. Raises ValueError if a question is not of this persona.
    """
    judge, parrot = Judge(persona), Parrot(parse(one.text) for one in train if one.group.startswith(TRAINED_GROUPS))

    def shares(name: str, reply: Callable[[Conversation], str]) -> dict[str, Estimate]:
        result = {}
        for kind in (kind for kind in KINDS if kind in asked):
            replies = [reply(one.conversation) for one in progress(asked[kind], f"{name}: {kind}", unit="question")]
            result[kind] = judge.share(asked[kind], replies)
        return result

    own, repeated = shares("persona", reply), shares("parrot", parrot.reply)
    recall = {"recall": own.pop("recall")} if "recall" in own else {}
    repeated.pop("recall", None)  # it cannot recall what it was never told
    return ({"sense": {**own, "parrot": repeated}} if own else {}) | recall


class Judge:
    """Decides which replies make sense for a persona."""

    def __init__(self, persona: Persona) -> None:
        self._persona, self._exchanges = persona, persona.exchanges()
        self._facts = {fact.name: fact for fact in persona.facts}

    def share(self, questions: Sequence[Question], replies: Sequence[str]) -> Estimate:
        """The share of replies that make sense."""
        return share([self.makes_sense(one.skill, reply) for one, reply in zip(questions, replies, strict=True)])

    def makes_sense(self, skill: dict[str, Any], reply: str) -> bool:
        """Whether a reply to a question of this `skill` makes sense. Raises ValueError for another persona's skill."""
        persona = self._persona
        said = {key: persona.word(key, word) for key, word in skill["slots"].items()}
        if skill["name"] == "talk":
            return persona.accepts(self._named(self._exchanges, skill["intent"]), said, reply)
        fact = self._named(self._facts, skill["fact"])
        return persona.accepts(fact.ask, said, reply) or self._recalls(skill["contains"], said, reply)

    def _recalls(self, contained: list[str], said: dict[str, Word], reply: str) -> bool:
        text = _spaced(reply)
        for key, word in said.items():
            if word["word"] in contained:
                if (spoken := _spaced(word["word"])) not in text:
                    return False
                rest = text.replace(spoken, " | ")
                if any(_spaced(other["word"]) in rest for other in self._persona.words[key.partition(".")[0]]):
                    return False
        return bool(contained)

    def _named(self, known: dict[str, Named], name: str) -> Named:
        if name not in known:
            file = self._persona.file
            raise ValueError(f"{file}: no {name!r}, for which the test set asks: run prepare and mix again")
        return known[name]


def _spaced(text: str) -> str:
    return f" {fold(text).strip()} "


class Parrot:
    """Answers as the training conversation whose user's message is nearest, by the cosine of TF-IDF vectors."""

    def __init__(self, conversations: Iterable[Conversation]) -> None:
        answers = dict[str, str]()
        for conversation in conversations:
            for message, answer in pairwise(conversation):
                if message.role == "user" and answer.role == "assistant":
                    answers.setdefault(fold(message.text).strip(), answer.text)
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
