"""A data card: what conversations hold, how long they are, and what is odd in their texts."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.conversation import (
    Message,
    Record,
    TemplateName,
    is_document,
    parse,
    parse_record,
    record_segments,
    unescape,
)
from chatmill.personal_data import PERSONAL
from chatmill.workers import FileRange

# What is odd in texts: traces of wrong decoding, markup and templates, and what looks like personal data.

AROUND = 24  # characters of an example on each side

_TAGS = "a|b|i|u|p|br|hr|div|span|ul|ol|li|table|tr|td|th|img|h[1-6]|script|style|strong|em|pre|code|html|body|font"
_ALWAYS = {
    "mojibake": re.compile("Ã[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹Œ‘’“”•–—˜™š›œžŸ]|â€|Â[\xa0-\xbf]|ðŸ|ï»¿|\ufffd"),
    "HTML": re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,300}})?/?>|&(?:amp|lt|gt|quot|nbsp|#\d{{1,6}});", re.I),
    "URLs": re.compile(r"\bhttps?://[^\s<>\"]+|\bwww\.[^\s<>\"]+\.\w+", re.I),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]"),
    "template marks": re.compile(
        r"<\|(?:im_start|im_end|endoftext|eot_id|start_header_id|user|assistant|system|end)\|>|\[/?INST\]|<</?SYS>>"
        r"|</?s>|<(?:start|end)_of_turn>|###\s?(?:Human|Assistant|Instruction|Response|User|System)\b"
    ),
    "placeholders": re.compile(
        r"\{\{\s*\w+\s*\}\}|\[(?:NAME|REDACTED|EMAIL|PHONE|URL)[\w ]*\]|<(?:unk|pad|mask|NAME|URL|USER)>"
    ),
}
ODDITIES = {  # patterns, and which of their matches count
    **{name: (pattern, bool) for name, pattern in _ALWAYS.items()},
    **{name: (pattern, counts) for name, (_, pattern, counts) in PERSONAL.items()},
}


def find_oddities(text: str) -> dict[str, str]:
    """The odd things in a text by name, each with its first example."""
    found = {}
    for name, (pattern, counts) in ODDITIES.items():
        match = next((match for match in pattern.finditer(text) if counts(match[0])), None)
        if match is not None:
            start, end = max(0, match.start() - AROUND), min(match.end(), match.start() + 3 * AROUND) + AROUND
            example = " ".join(text[start:end].split())
            found[name] = f"{'…' if start else ''}{example}{'…' if end < len(text) else ''}"
    return found


# The lengths of records in tokens, for any tokenizer.

Count = Callable[[Sequence[Record]], Sequence[int]]


def token_counter(tokenizer: Any, template: TemplateName = "chatml") -> Count:
    """Counts by a ChatTokenizer, which this module does not import: looking at a file does not need it."""

    def count(records: Sequence[Record]) -> list[int]:
        encoded = tokenizer.encode_conversations([record_segments(record, template) for record in records])
        return [int(end - start) for start, end in pairwise(encoded.offsets)]

    return count


# Reads some of the records of a file of any size, evenly over it.

MAX_BYTES = 10_000_000  # of the records together, about
MAX_READ_BYTES = 64_000_000  # of a file that is read as a whole


def sample_records(file: Path, count: int) -> list[Record]:
    """At most `count` records, in their order.

    Of a small file as many records of each source are taken as there is room for; of a large one, those after evenly
    spaced bytes. Raises ValueError with the byte of a line that is not a record.
    """
    by_source = defaultdict[str, list[tuple[int, Record]]](list)
    for place, line in _some_lines(file, count):
        try:
            record = parse_record(line)
        except ValueError as error:
            raise ValueError(f"{file}: near byte {place}: {error}") from error
        by_source[record.source].append((place, record))
    chosen: list[tuple[int, Record]] = []
    for number, records in enumerate(sorted(by_source.values(), key=len)):
        chosen += _evenly(records, (count - len(chosen)) // (len(by_source) - number))
    length = sum(len(record.text) for _, record in chosen)
    if length > MAX_BYTES:
        chosen = _evenly(chosen, max(1, len(chosen) * MAX_BYTES // length))
    return [record for _, record in sorted(chosen, key=itemgetter(0))]


def _some_lines(file: Path, count: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a small file, or some of a large one, each with its place or a byte shortly before it."""
    size = file.stat().st_size
    place, step = 0, size / count
    if size <= MAX_READ_BYTES:
        for line in FileRange(file, 0, size).lines():
            yield place, line
            place += len(line)
        return
    read = 0
    for number in range(count):
        place = int(number * step)
        line = next(FileRange(file, place, size).lines(), b"")
        read += len(line)
        if not line or read > MAX_BYTES:
            return
        yield place, line


def _evenly(records: list[tuple[int, Record]], count: int) -> list[tuple[int, Record]]:
    count = min(count, len(records))
    return [records[number * len(records) // count] for number in range(count)]


# A data card: what conversations hold, computed from the text that a model reads, whatever they were read from.

MAX_EXAMPLES = 3
MAX_ANSWERS = 5  # that are most frequent
MIN_SHARE = 0.01  # of the conversations, from which an answer is worth a word
MAX_TEXT = 20_000  # characters of a message in which odd things are looked for


class Spread(NamedTuple):
    """Half and 95 % of the values are at most so large, and the largest one."""

    p50: int
    p95: int
    max: int


@dataclass
class Card:
    """What a number of conversations hold. Documents, which have no roles, count as one message each."""

    conversations: int
    messages: dict[str, int]  # by role
    bytes: int  # of the messages' text
    trained_bytes: int
    turns: Spread  # messages per conversation
    unit: str  # of the lengths
    lengths: Spread  # of rendered conversations
    cut: int | None  # conversations longer than the context; None without a context
    duplicates: int  # conversations that are equal to an earlier one
    frequent_answers: dict[str, int]  # given three times or more, and not in a few of many conversations
    odd: dict[str, dict[str, Any]]  # messages with something odd: count and examples


def make_card(records: Iterable[Record], *, count_tokens: Count | None = None, context: int | None = None) -> Card:
    """The card of some conversations. Lengths are in tokens with `count_tokens`, or else in characters."""
    chosen = list(records)
    lengths = list(count_tokens(chosen)) if count_tokens else [len(record.text) for record in chosen]
    roles, num_bytes, trained_bytes = Counter[str](), 0, 0
    messages, turns = list[Message](), list[int]()
    for record in chosen:
        is_text = is_document(record.text)
        found = [Message.from_text("assistant", unescape(record.text))] if is_text else parse(record.text)
        turns.append(len(found))
        messages += found
        for message, flag in zip(found, record.train or [None] * len(found), strict=True):
            roles["document" if is_text else message.role] += 1
            is_trained = message.role == "assistant" if flag is None else flag
            sizes = [(part.kind, len(part.text.encode("utf-8", "surrogatepass"))) for part in message.parts]
            num_bytes += sum(size for _, size in sizes)
            trained_bytes += sum(size for kind, size in sizes if is_trained and kind != "output")
    answers = Counter(message.text.strip() for message in messages if message.role == "assistant")
    fewest = max(2, MIN_SHARE * len(chosen))
    return Card(
        conversations=len(chosen),
        messages=dict(roles.most_common()),
        bytes=num_bytes,
        trained_bytes=trained_bytes,
        turns=spread(turns),
        unit="tokens" if count_tokens else "characters",
        lengths=spread(lengths),
        cut=None if context is None else sum(length > context for length in lengths),
        duplicates=len(chosen) - len({record.text for record in chosen}),
        frequent_answers={text: count for text, count in answers.most_common(MAX_ANSWERS) if text and count > fewest},
        odd=_odd_messages(messages),
    )


def spread(values: Iterable[int]) -> Spread:
    """The quantiles of values by the nearest rank; zeros if there are none."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0, 0)
    return Spread(*(ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 95, 100)))


def _odd_messages(messages: Iterable[Message]) -> dict[str, dict[str, Any]]:
    counts, examples = Counter[str](), defaultdict[str, list[str]](list)
    for message in messages:
        for name, example in find_oddities(message.text[:MAX_TEXT]).items():
            counts[name] += 1
            if len(examples[name]) < MAX_EXAMPLES and example not in examples[name]:
                examples[name].append(example)
    return {name: {"messages": count, "examples": examples[name]} for name, count in counts.most_common()}
