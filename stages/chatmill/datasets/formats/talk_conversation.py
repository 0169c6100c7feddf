"""A conversation with a persona that grows exchange by exchange, spelled as people write."""

import re
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate
from random import Random

from chatmill.conversation import Conversation, Message
from chatmill.talk.folding import letters
from chatmill.talk.grammar import Node, Speaker, Word, draw_word
from chatmill.talk.persona import Exchange, Fact, Persona

# How people write a plain sentence: mostly with a capital and a full stop, sometimes in haste or with typos.

_CAPITAL = re.compile(r"(?:^|[.?!] )\W*[^\W\d_]|\bi\b")
_SHORT_FORMS = {"you": "u", "are": "r", "please": "pls"}  # English; apostrophes are dropped in any language
_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    key: [row[near] for row in _KEYBOARD[max(0, y - 1) : y + 2] for near in (x - 1, x, x + 1) if 0 <= near < len(row)]
    for y, keys in enumerate(_KEYBOARD)
    for x, key in enumerate(keys)
}


def vary_case_and_marks(text: str, random: Random) -> str:
    """A sentence as people type it: perhaps in lower case, perhaps without its last mark.

    `text` ends with a question mark if it is a question, and never with a full stop.
    """
    style = random.random()
    text = text.lower() if style < 0.25 else _CAPITAL.sub(lambda match: match[0].upper(), text)
    if random.random() < (0.6 if style < 0.25 else 0.25):
        return text.rstrip(".?! ")
    return text if text.endswith((".", "?", "!")) else f"{text}."


def add_typos(text: str, random: Random, kept: Container[str]) -> str:
    """The text with one or two typing errors, short forms and dropped apostrophes; the words in `kept` stay.

    A text without words in which an error leaves a word, such as one of two letters, may stay as it is.
    """
    plain = text.split(" ")
    short = {word: _SHORT_FORMS.get(word, word).replace("'", "") for word in plain}
    words = [word if word in kept or random.random() < 0.4 else short[word] for word in plain]
    whole = [i for i, word in enumerate(words) if word == plain[i] and word.isalpha() and word not in kept]
    places = [i for i in whole if len(words[i]) > 3] or [i for i in whole if len(words[i]) > 2]
    for index in random.sample(places, min(len(places), random.choice((1, 1, 2)))):
        words[index] = _typo(words[index], random)
    return " ".join(words)


def _typo(word: str, random: Random) -> str:
    """The word with a letter, not the first, dropped, doubled, swapped with that before, or replaced by a near key."""
    place, kind = random.randrange(1, len(word)), random.randrange(4)
    letter = word[place]
    if kind == 0:
        letter = ""
    elif kind == 1:
        letter *= 2
    elif kind == 2 and word[place - 1] != letter:
        return f"{word[: place - 1]}{letter}{word[place - 1]}{word[place + 1 :]}"
    else:
        letter = random.choice([near for near in _NEIGHBOURS.get(letter, "") if near != letter] or [letter * 2])
    return f"{word[:place]}{letter}{word[place + 1 :]}"


# The conversation.

_BEFORE_MARK = re.compile(r" ([,.?!;:](?!\S))")
TYPOS = 0.3  # share of the messages with typing errors
FILLERS = 0.15  # share of the messages with words before, and of those with words after
FAVOURITE = 0.5  # how often an answer is the first that is left: so a kind with many is as likely as one with few
ATTEMPTS_TO_PHRASE = 100
ATTEMPTS = 8  # to draw an intent that did not occur in the conversation


class Choices:
    """Exchanges that are drawn by their weights; those from which many go on more often, so that all are learnt."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.exchanges = list(exchanges)
        self.cumulative = list(accumulate(exchange.weight * exchange.size**0.5 for exchange in self.exchanges))

    def draw(self, random: Random) -> Exchange:
        return random.choices(self.exchanges, cum_weights=self.cumulative)[0]


class Talk:
    """A conversation that grows. Slots keep their words in a thread, those of facts until they are told anew."""

    def __init__(self, persona: Persona, random: Random) -> None:
        self.messages: Conversation = []
        self.said_before_answer: dict[str, Word] = {}  # the words by slot, before the last answer
        self._persona, self._random = persona, random
        self._speaker = Speaker(persona.words, random)
        self._told = dict[str, Word]()
        self._told_at = dict[str, int]()  # the length after a fact was told, by its name
        self._intents = set[str]()
        self._answers = set[Node]()  # that were given, and are repeated only where no other is left

    @property
    def length(self) -> int:
        return len(self.messages) // 2

    def distance(self, fact: Fact) -> int:
        return self.length - self._told_at[fact.name]

    def thread(self, intents: Choices, goes_on: float) -> None:
        """Add an intent, new if ATTEMPTS draws find one; after each, with probability goes_on, one of its follow."""
        for _ in range(ATTEMPTS):
            intent = intents.draw(self._random)
            if intent.path not in self._intents:
                break
        self._intents.add(intent.path)
        self.exchanges([intent])
        while intent.follow and self._random.random() < goes_on:
            intent = Choices(intent.follow).draw(self._random)
            self.exchanges([intent], goes_on=True)

    def exchanges(self, chain: Iterable[Exchange], *, goes_on: bool = False) -> None:
        """Add known exchanges of one thread, a new one unless it goes on."""
        if not goes_on:
            self._speaker.said = dict(self._told)
        for exchange in chain:
            self.add(exchange, exchange.known)

    def add(
        self, exchange: Exchange, phrasings: Sequence[Node], *, opening: str = "", is_noisy: bool | None = None
    ) -> bool:
        """Add an exchange of the present thread in one of the phrasings; whether it has typos, which may be asked."""
        random, speaker = self._random, self._speaker
        speaker.drawable = None
        plain = self._phrase(exchange, phrasings, opening)
        text = plain
        if random.random() < TYPOS if is_noisy is None else is_noisy:
            kept = {part for word in speaker.said.values() for form in word.values() for part in form.split()}
            text = add_typos(plain, random, kept)
        self.said_before_answer = dict(speaker.said)
        speaker.drawable = exchange.drawable
        usable = [answer for answer in exchange.answers if speaker.is_usable(answer)]
        unused = [answer for answer in usable if answer not in self._answers] or usable
        node = unused[0] if random.random() < FAVOURITE else random.choice(unused)
        self._answers.add(node)
        answer = _tidy(speaker.say(node))
        self.messages.append(Message.from_text("user", vary_case_and_marks(text, random)))
        self.messages.append(Message.from_text("assistant", answer[0].upper() + answer[1:]))
        return text != plain

    def _phrase(self, exchange: Exchange, phrasings: Sequence[Node], opening: str) -> str:
        """A text of one of the phrasings; of known ones, none that is held back elsewhere. Raises ValueError."""
        said, before = self._speaker.said, dict(self._speaker.said)
        for _ in range(ATTEMPTS_TO_PHRASE):
            said.clear()
            said |= before
            text = _tidy(opening + self._speaker.say(self._random.choice(phrasings)))
            if phrasings is not exchange.known:
                return text
            text = text if opening else self._with_fillers(text)
            if letters(text) not in self._persona.held_back:
                return text
        raise ValueError(f"{self._persona.file}: {exchange.path}: its known phrasings are all held back: add others")

    def _with_fillers(self, text: str) -> str:
        """The text, sometimes with words before or after it that mean nothing."""
        random, persona = self._random, self._persona
        if persona.before and random.random() < FILLERS:
            text = random.choice(persona.before) + text
        if persona.after and random.random() < FILLERS:
            end = text[-1] if text.endswith(("?", "!")) else ""
            text = text.removesuffix(end) + random.choice(persona.after) + end
        return text

    def tell(self, fact: Fact) -> None:
        """Add that the user tells a fact; one told before is corrected by other words, if there are any."""
        opening, said = "", dict(self._told)
        if fact.name in self._told_at:
            opening = self._random.choice(self._persona.again)
            if not (changed := self._corrected_words(fact)):
                return
            said |= changed
        self._speaker.said = said  # to which the words are added that are drawn
        self.add(fact.tell, fact.tell.known, opening=opening)
        self._told |= {key: word for key, word in said.items() if key in fact.slots}
        self._told_at[fact.name] = self.length

    def _corrected_words(self, fact: Fact) -> dict[str, Word]:
        result = dict[str, Word]()
        for key in sorted(fact.slots & self._told.keys()):
            words, told = self._persona.words[key.partition(".")[0]], [*self._told.values(), *result.values()]
            if any(word not in told for word in words):
                result[key] = draw_word(words, told, self._random)
        return result

    def ask(self, fact: Fact, phrasings: Sequence[Node] | None = None) -> None:
        told = fact.name in self._told_at
        self._speaker.said = dict(self._told) if told else {}
        self.add(fact.ask if told else fact.ask_untold, phrasings or fact.ask.known)


def _tidy(text: str) -> str:
    """The text without what is left over around optional parts: repeated blanks, and marks without a word before."""
    return _BEFORE_MARK.sub(r"\1", " ".join(text.split())).lstrip(",;:. ")
