"""Conversations with a persona, generated from the intents and facts of a YAML file (chatmill.talk.persona).

Most conversations are for training, and all that the user says in them is phrased as in `known`. One of
HELD_BACK_EVERY is for validation or test (chatmill.datasets.formats.talk_held_back), and its last answer is scored.
Half of the conversations declare the calculator (chatmill.conversation.chatml.declare_tools), as chats do.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from random import Random

from chatmill.conversation.chatml import Conversation, declare_tools
from chatmill.datasets.formats.example import Example, as_turns
from chatmill.datasets.formats.talk_conversation import Choices, Talk
from chatmill.datasets.formats.talk_held_back import HeldBackTalks
from chatmill.datasets.split import on_side
from chatmill.talk.persona import Fact, Persona, read_persona, slots_of

HELD_BACK_EVERY = 15
LONG_CHAT = (20, 40)  # exchanges
SHORT_CHAT = (3, 9)
FACT_CHAT = (1, 4)
IN_CONTEXT = 24  # exchanges at the end of a long chat, in which facts are told; a context of 1,024 tokens holds these


def generate(file: Path, *, limit: int, seed: int) -> Iterator[Example]:
    """`limit` conversations; a smaller limit gives the first of them. Raises ValueError for an invalid file."""
    persona, random = read_persona(file), Random(seed)
    known, held_back = KnownTalks(persona, random), HeldBackTalks(persona, random)
    for number in islice(count(1), limit):
        place, group = f"{file}: conversation {number}", f"talk/{number}"
        has_calculator = random.random() < 0.5
        if number % HELD_BACK_EVERY:
            item = Example(place, on_side(group, "train"), as_turns(known.draw()))
        else:
            talk = held_back.draw()
            item = Example(
                place, on_side(group, talk.split), as_turns(talk.conversation), talk.skill | {"persona": file.name}
            )
        yield replace(item, turns=as_turns(declare_tools(item.conversation))) if has_calculator else item


class KnownTalks:
    """Draws conversations of known phrasings."""

    def __init__(self, persona: Persona, random: Random) -> None:
        self._persona, self._random = persona, random
        self._intents = Choices(persona.intents)
        self._said = {
            intent.path: slots_of(node for chain in intent.descend() for node in chain[-1].known)
            for intent in persona.intents
        }

    def draw(self) -> Conversation:
        """An intent with what follows, or a fact with little else, or several intents, or a long chat."""
        kind = self._random.random()
        if kind < 0.5:
            talk = Talk(self._persona, self._random)
            talk.thread(self._intents, goes_on=0.8)
            return talk.messages
        if kind < 0.7:
            return self._chat(self._random.randint(*FACT_CHAT), 1)
        if kind < 0.93:
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
                talk.thread(intents, goes_on=0.7)
        return talk.messages

    def _events(self, facts: list[Fact], length: int) -> list[tuple[int, bool, Fact]]:
        """When each fact is told, True, or asked for: sometimes before it was told, and sometimes told anew."""
        random, events = self._random, []
        for fact in facts:
            actions = [False] * (random.random() < 0.3) + [True] + [False] * random.choice((1, 1, 2))
            actions += [True, False] * (random.random() < 0.3) + [False] * (random.random() < 0.3)
            places = sorted(random.randrange(max(0, length - IN_CONTEXT), length) for _ in actions)
            events += [(place, is_told, fact) for place, is_told in zip(places, actions, strict=True)]
        return sorted(events, key=lambda event: event[0])

    def _compatible(self, num_facts: int) -> tuple[list[Fact], Choices]:
        """At most this number of facts, and intents in which the user says nothing else of them."""
        facts, slots, intents = list[Fact](), frozenset[str](), self._persona.intents
        for fact in self._random.sample(self._persona.facts, len(self._persona.facts)):
            if len(facts) == num_facts:
                break
            free = tuple(intent for intent in intents if not fact.slots & self._said[intent.path])
            if free and not slots & fact.slots:
                facts.append(fact)
                slots |= fact.slots
                intents = free
        return facts, Choices(intents)
