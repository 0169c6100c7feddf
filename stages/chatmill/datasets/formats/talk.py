"""Conversations with a persona, generated from the intents and facts of a YAML file (chatmill.talk.persona).

Most are of known phrasings, for training. One of HELD_BACK_EVERY is for validation or test, and its last answer is
scored: the last message of the user is phrased as in `held_back`, or it asks for a fact told before; each one before
that is phrased as in `known`. Of the held-back phrasings of an exchange, the first half is for test.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from chatmill.conversation import Conversation, declare_tools
from chatmill.datasets.formats.example import Example, as_turns
from chatmill.datasets.formats.talk_conversation import Choices, Talk
from chatmill.datasets.split import SplitName, on_side
from chatmill.talk.grammar import Node, slots_of
from chatmill.talk.persona import Exchange, Fact, Persona, read_persona

HELD_BACK_EVERY = 15
DECLARED = 0.8  # share of the conversations in which the calculator is declared
DISTANCES = (0, 5, 1, 12, 3, 20, 2, 8)  # exchanges between a fact and the question for it, at least


Drawn = tuple[SplitName, Conversation, dict[str, Any] | None]  # the last is how the last answer is scored


class HeldBackTalks:
    """Draws held-back conversations; over many of them, exchanges, turns and phrasings are used evenly."""

    def __init__(self, persona: Persona, random: Random) -> None:
        self._persona, self._random = persona, random
        chains = [chain for opening in persona.openings() for chain in opening.descend()]
        self._by_turn = [[chain for chain in chains if len(chain) == n] for n in sorted({*map(len, chains)})]
        for some in self._by_turn:
            random.shuffle(some)
        self._facts = random.sample(persona.facts, len(persona.facts))
        self._used = {
            intent.path: slots_of(n for chain in intent.descend() for n in chain[-1].phrasings + chain[-1].answers)
            for intent in persona.intents
        }
        self._counts = Counter[object]()
        later, recall = ["later"] * 2 if len(self._by_turn) > 1 else [], ["recall"] if persona.facts else []
        self._kinds = cycle(["first", "noisy", *later, *recall])

    def draw(self) -> Drawn:
        kind = next(self._kinds)
        if kind == "recall":
            return self._recall()
        turn = 2 + self._next("turn") % (len(self._by_turn) - 1) if kind == "later" else 1
        return self._exchange(turn, is_noisy=kind == "noisy")

    def _exchange(self, turn: int, *, is_noisy: bool) -> Drawn:
        chains = self._by_turn[turn - 1]
        *known, last = chains[self._next((turn, is_noisy)) % len(chains)]
        phrasing, split = self._phrasing(last)
        talk = Talk(self._persona, self._random)
        talk.exchanges(known)
        has_typos = talk.add(last, [phrasing], is_noisy=is_noisy)
        skill = {"name": "talk", "intent": last.path, "phrasing": "held_back", "turn": turn, "noisy": has_typos}
        return split, talk.messages, skill | {"accepted": self._accepted(last, talk)}

    def _recall(self) -> Drawn:
        fact = self._facts[self._next("fact") % len(self._facts)]
        talk = Talk(self._persona, self._random)
        others = [intent for intent in self._persona.intents if not fact.slots & self._used[intent.path]]
        for _ in range(self._random.choice((1, 1, 2))):
            self._talk_of_others(talk, others, self._random.choice((0, 1)))
            talk.tell(fact)
        self._talk_of_others(talk, others, DISTANCES[self._next_index((fact.name, "distance"), len(DISTANCES))])
        skill = {"name": "recall", "phrasing": "known", "fact": fact.name, "distance": talk.distance(fact)}

        # Known and held-back phrasings in turn; of the known questions, three of four are for test.
        index, phrasings = self._next((fact.name, "question")), fact.ask.known
        split: SplitName = "validation" if index % 8 == 6 else "test"
        if index % 2:
            phrasing, split = self._phrasing(fact.ask)
            skill["phrasing"], phrasings = "held_back", (phrasing,)
        talk.ask(fact, phrasings)
        said, asked = talk.said_before_answer, slots_of(fact.ask.phrasings)
        skill["contains"] = [said[key]["word"] for key in sorted(fact.slots - asked) if key in said]
        return split, talk.messages, skill | {"accepted": self._accepted(fact.ask, talk)}

    def _talk_of_others(self, talk: Talk, intents: Sequence[Exchange], length: int) -> None:
        end, choices = talk.length + length, Choices(intents)
        while intents and talk.length < end:
            talk.thread(choices, goes_on=0.5)

    def _accepted(self, exchange: Exchange, talk: Talk) -> list[str]:
        return self._persona.accepted(exchange, talk.said_before_answer, talk.messages[-2].text)

    def _phrasing(self, exchange: Exchange) -> tuple[Node, SplitName]:
        size = len(exchange.held_back)
        index = self._next_index(exchange.path, size)
        return exchange.held_back[index], "test" if index < (size + 1) // 2 else "validation"

    def _next(self, key: object) -> int:
        self._counts[key] += 1
        return self._counts[key] - 1

    def _next_index(self, key: object, size: int) -> int:
        """The next index for this key: 0 to size - 1 in turn, from a random start."""
        if key not in self._counts:
            self._counts[key] = self._random.randrange(size)
        return self._next(key) % size


# Conversations of known phrasings, and those of both kinds in turn.

GOES_ON = 0.5  # how often an exchange is followed by one of its own: else the topic changes, as people change it
LONG_CHAT = (20, 40)  # exchanges
SHORT_CHAT = (2, 8)
FACT_CHAT = (1, 4)
IN_CONTEXT = 24  # exchanges at the end of a long chat, in which facts are told; a context of 1,024 tokens holds these


def generate(file: Path, *, limit: int, seed: int) -> Iterator[Example]:
    """`limit` conversations; a smaller limit gives the first of them. Raises ValueError for an invalid file."""
    persona, random = read_persona(file), Random(seed)
    known, held_back = KnownTalks(persona, random), HeldBackTalks(persona, random)
    for number in range(1, limit + 1):
        has_calculator = random.random() < DECLARED
        drawn: Drawn = ("train", known.draw(), None) if number % HELD_BACK_EVERY else held_back.draw()
        split, conversation, skill = drawn
        turns = as_turns(declare_tools(conversation) if has_calculator else conversation)
        yield Example(f"{file}: conversation {number}", on_side(f"talk/{number}", split), turns, skill)


class KnownTalks:
    """Draws conversations of known phrasings, for training."""

    def __init__(self, persona: Persona, random: Random) -> None:
        self._persona, self._random = persona, random
        self._intents = Choices(persona.intents)
        self._user_slots = {  # of each intent: the slots that the user may say in it, or in what follows
            intent.path: slots_of(node for chain in intent.descend() for node in chain[-1].known)
            for intent in persona.intents
        }

    def draw(self) -> Conversation:
        """An intent with what follows, or a fact with little else, or several intents, or a long chat."""
        kind = self._random.random()
        if kind < 0.5:
            talk = Talk(self._persona, self._random)
            talk.thread(self._intents, GOES_ON)
            return talk.messages
        if kind < 0.7:
            return self._chat(self._random.randint(*FACT_CHAT), 1)
        if kind < 0.95:
            return self._chat(self._random.randint(*SHORT_CHAT), self._random.choice((0, 1, 1, 2)))
        return self._chat(self._random.randint(*LONG_CHAT), self._random.randint(2, 6))

    def _chat(self, length: int, num_facts: int) -> Conversation:
        """A conversation of at least `length` exchanges, in which facts are told and asked for at any place."""
        talk = Talk(self._persona, self._random)
        facts, intents = self._compatible(num_facts) if num_facts else ([], self._intents)
        events = self._events(facts, length)
        while events or talk.length < length:
            if events and events[0][0] <= talk.length:
                _, is_told, fact = events.pop(0)
                talk.tell(fact) if is_told else talk.ask(fact)
            else:
                talk.thread(intents, GOES_ON)
        return talk.messages

    def _events(self, facts: list[Fact], length: int) -> list[tuple[int, bool, Fact]]:
        """When each fact is told, True, or asked for: sometimes before it was told, and sometimes told anew.

        In a long chat it is told and asked for once, far from each other.
        """
        random, events = self._random, []
        start = length - IN_CONTEXT
        for fact in facts:
            if start > 0:
                told, asked = start + random.randrange(IN_CONTEXT // 3), length - random.randint(1, IN_CONTEXT // 3)
                events += [(told, True, fact), (asked, False, fact)]
                continue
            actions = [False] * (random.random() < 0.3) + [True] + [False] * random.choice((1, 1, 2))
            actions += [True, False] * (random.random() < 0.3) + [False] * (random.random() < 0.3)
            places = sorted(random.randrange(length) for _ in actions)
            events += [(place, is_told, fact) for place, is_told in zip(places, actions, strict=True)]
        return sorted(events, key=lambda event: event[0])

    def _compatible(self, num_facts: int) -> tuple[list[Fact], Choices]:
        """At most this number of facts, and intents in which the user says nothing else of them."""
        facts, slots, intents = list[Fact](), frozenset[str](), self._persona.intents
        for fact in self._random.sample(self._persona.facts, len(self._persona.facts)):
            if len(facts) == num_facts:
                break
            free = tuple(intent for intent in intents if not fact.slots & self._user_slots[intent.path])
            if free and not slots & fact.slots:
                facts.append(fact)
                slots |= fact.slots
                intents = free
        return facts, Choices(intents)
