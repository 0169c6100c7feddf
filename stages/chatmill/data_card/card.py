"""A data card: what conversations hold, computed from the text that a model reads, whatever they were read from."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chatmill.conversation.chatml import Message, Record, is_document, parse, unescape
from chatmill.data_card.languages import UNCERTAIN, count_languages
from chatmill.data_card.lengths import Count
from chatmill.data_card.oddities import find_oddities

MAX_EXAMPLES = 3
MAX_ANSWERS = 5  # that are most frequent
MAX_LANGUAGES = 300  # conversations whose language is identified, about
MIN_SHARE = 0.01  # of the conversations, from which a language or an answer is worth a word
MAX_TEXT = 20_000  # characters of a message in which odd things are looked for


class Spread(NamedTuple):
    """Half and 95 % of the values are at most so large, and the largest one."""

    p50: int
    p95: int
    max: int


NONE = Spread(0, 0, 0)


@dataclass
class Card:
    """What a number of conversations hold. Documents, which have no roles, count as one message each."""

    conversations: int = 0
    messages: dict[str, int] = field(default_factory=dict)  # by role
    bytes: int = 0  # of the messages' text
    trained_bytes: int = 0
    turns: Spread = NONE  # messages per conversation
    unit: str = "characters"  # of the lengths
    lengths: Spread = NONE  # of rendered conversations
    cut: int | None = None  # conversations longer than the context; None without a context
    languages: dict[str, int] | None = None  # conversations by language; None if they were not identified
    duplicates: int = 0  # conversations that are equal to an earlier one
    answers: dict[str, int] = field(default_factory=dict)  # the most frequent ones, of those given more than once
    odd: dict[str, dict[str, Any]] = field(default_factory=dict)  # messages with something odd: count and examples

    @property
    def language_shares(self) -> str:
        """The languages of more than a few conversations, with their shares, in words."""
        found = self.languages or {}
        total = sum(found.values())
        return ", ".join(
            f"{'uncertain' if name == UNCERTAIN else name} {count / total:.0%}"
            for name, count in found.items()
            if count >= MIN_SHARE * total
        )

    @property
    def frequent_answers(self) -> dict[str, int]:
        """The answers that are given three times or more, and not in a few of many conversations."""
        fewest = max(2, MIN_SHARE * self.conversations)
        return {text: count for text, count in self.answers.items() if count > fewest}


def make_card(
    records: Iterable[Record], *, count_tokens: Count | None = None, context: int | None = None, languages: bool = True
) -> Card:
    """The card of some conversations. Lengths are in tokens with `count_tokens`, or else in characters."""
    card, chosen = Card(unit="tokens" if count_tokens else "characters"), list(records)
    conversations = [_messages(record.text) for record in chosen]
    card.conversations = len(chosen)
    card.turns = spread(map(len, conversations))
    lengths = list(count_tokens(chosen) if count_tokens else (len(r.text) for r in chosen))
    card.lengths = spread(lengths)
    card.cut = None if context is None else sum(length > context for length in lengths)
    card.duplicates = len(chosen) - len({record.text for record in chosen})
    _add_messages(card, chosen, conversations)
    _add_answers(card, conversations)
    _add_oddities(card, conversations)
    if languages:
        step = 1 + len(conversations) // MAX_LANGUAGES
        card.languages = count_languages(
            "\n".join(message.text for message in messages[:6]) for messages in conversations[::step]
        )
    return card


def spread(values: Iterable[int]) -> Spread:
    """The quantiles of values by the nearest rank; zeros if there are none."""
    ordered = sorted(values)
    if not ordered:
        return NONE
    return Spread(*(ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 95, 100)))


def _messages(text: str) -> list[Message]:
    """The messages of a record; a document is one of the assistant, as all of it is trained."""
    return [Message.from_text("assistant", unescape(text))] if is_document(text) else parse(text)


def _add_messages(card: Card, records: Sequence[Record], conversations: Sequence[Sequence[Message]]) -> None:
    roles = Counter[str]()
    for record, messages in zip(records, conversations, strict=True):
        kind = "document" if is_document(record.text) else ""
        flags = record.train or [None] * len(messages)
        for message, flag in zip(messages, flags, strict=True):
            roles[kind or message.role] += 1
            sizes = {part.kind: 0 for part in message.parts}
            for part in message.parts:
                sizes[part.kind] += len(part.text.encode("utf-8", "surrogatepass"))
            card.bytes += sum(sizes.values())
            if flag if flag is not None else message.role == "assistant":
                card.trained_bytes += sum(size for kind, size in sizes.items() if kind != "output")
    card.messages = dict(roles.most_common())


def _add_answers(card: Card, conversations: Iterable[Sequence[Message]]) -> None:
    answers = Counter(
        message.text.strip() for messages in conversations for message in messages if message.role == "assistant"
    )
    card.answers = {text: count for text, count in answers.most_common(MAX_ANSWERS) if count > 1 and text}


def _add_oddities(card: Card, conversations: Iterable[Sequence[Message]]) -> None:
    counts, examples = Counter[str](), defaultdict[str, list[str]](list)
    for messages in conversations:
        for message in messages:
            for name, example in find_oddities(message.text[:MAX_TEXT]).items():
                counts[name] += 1
                if len(examples[name]) < MAX_EXAMPLES and example not in examples[name]:
                    examples[name].append(example)
    card.odd = {name: {"messages": count, "examples": examples[name]} for name, count in counts.most_common()}
