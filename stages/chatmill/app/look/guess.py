"""What a guess is, whose the names of speakers are, and guesses of rows that are texts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from chatmill.datasets.formats import chats
from chatmill.datasets.formats.mapping import USUAL_NAMES, Speaker

# Guesses the format of rows, from some of them: a section for params.yaml, and what a person should check.

MIN_SHARE = 0.8  # of the rows, in which a column has the expected shape
MAX_DEPTH = 4  # of keys inside each other
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])|\d+")
Values = dict[str, list[Any]]  # those under each path of keys, one row after the other


@dataclass
class Guess:
    """A section for params.yaml, but for its path, and what a person should check of it."""

    format: str = "table"
    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    first: str | None = None
    turn_separator: str | None = None
    limit: int | None = None
    doubts: list[str] = field(default_factory=list)

    def section(self) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if value and key != "doubts"}
        if self.roles:
            found["roles"] = {role: names[0] if len(names) == 1 else names for role, names in self.roles.items()}
        return found


class NoGuessError(ValueError):
    """Raised for rows that no format reads; the message says why, and what it would need."""


def by_path(rows: Iterable[Any]) -> Values:
    """The values under each path of keys that are not null."""
    result = defaultdict[str, list[Any]](list)
    for row in rows:
        for path, value in _paths(row):
            result[path].append(value)
    return dict(result)


def _paths(entry: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not isinstance(entry, dict) or depth == MAX_DEPTH:
        return
    for key, value in entry.items():
        path = f"{before}.{key}" if before else str(key)
        if isinstance(value, dict):
            yield from _paths(value, path, depth + 1)
        elif value is not None:
            yield path, value


def frequent(values: Values, count: int, share: float = MIN_SHARE) -> Values:
    """The paths that this share of the rows have."""
    return {path: found for path, found in values.items() if len(found) >= share * count}


def are_texts(found: Sequence[Any]) -> bool:
    """Whether all values are texts, and some are not blank."""
    return all(isinstance(value, str) for value in found) and any(value.strip() for value in found)


_DATE_WORDS = (  # how the words of dates begin, in some languages
    "jan ene gen feb fév fev mar mär apr abr avr may mai mag jun jui giu jul lug aug ago aoû sep set oct okt "
    "ott out nov dec déc dez dic mon tue wed thu fri sat sun am pm utc gmt t z uhr de at st nd rd th h 年 月 日 時 分"
)
_DATE = rf"(?=\D*\d)(?:[\W\d_]+|(?:{'|'.join(_DATE_WORDS.split())})[^\W\d_]{{0,8}}(?![^\W\d_]))+"
_IDENTIFIER = re.compile(rf"(?i)[\w-]*[_\d-][\w-]*|\S+/\S*|\S+@\S+|{_DATE}")


def are_identifiers(found: Sequence[Any]) -> bool:
    """Whether most values are dates, numbers, or names of things, as `Bot_Ability` or `a7-20`, and no words."""
    return sum(_IDENTIFIER.fullmatch(str(value)) is not None for value in found) > 0.8 * len(found)


def mean_length(texts: Iterable[Any]) -> float:
    lengths = [len(str(text)) for text in texts]
    return sum(lengths) / len(lengths) if lengths else 0.0


def words_of(path: str) -> list[str]:
    """The words of a path in lower case, the last one first: `data.userQuery_1` has 1, query, user, data."""
    return [word.lower() for word in _WORD.findall(path)][::-1]


def rank(path: str, names: Sequence[str]) -> float | None:
    """How well a path is named: 0 for the first of the names, more for others and for names within longer ones.

    None for a path in which there is none of them.
    """
    key = path.rpartition(".")[2].lower()
    if key in names:
        return float(names.index(key))
    found = [names.index(word) + len(names) * (1 + at) for at, word in enumerate(words_of(path)) if word in names]
    return float(min(found)) if found else None


def best_named(paths: Iterable[str], names: Sequence[str]) -> list[str]:
    ranked = [(order, path) for path in paths if (order := rank(path, names)) is not None]
    return [path for _, path in sorted(ranked, key=lambda item: item[0])]


# Tells whose the names of speakers are: those of the user, of the assistant, of others.

MAX_NAMES = 12  # in all rows; more are names of persons, or numbers
_USUAL = {name: speaker for speaker, names in USUAL_NAMES.items() for name in names}
_LIKELY: dict[Speaker, str] = {
    "system": "system_prompt sys instructions",
    "user": (
        "customer client caller visitor patient student learner seeker help_seeker asker questioner question buyer "
        "guest member person me usr q instruction prompt query input inquirer employee seller_lead borrower traveler"
    ),
    "assistant": (
        "agent support supporter operator advisor adviser doctor therapist counselor teacher tutor helper ai "
        "ai_assistant answer response reply a chatgpt bing bard claude llm wizard representative rep staff expert "
        "librarian asst virtual_assistant seller clerk nurse robot machine answerer output"
    ),
    "call": "tool-call function-call action tool_use",
    "output": "tool_result tool_output function_response function_result function-response tool-result",
}
_PROBABLE = {name: speaker for speaker, names in _LIKELY.items() for name in names.split()}


def speaker_of(name: str) -> str | None:
    """Whose a name is that is usual or likely; None for others."""
    key = name.strip().lower().replace(" ", "_")
    return _USUAL.get(name.lower()) or _PROBABLE.get(key)


def name_speakers(guess: Guess, orders: Sequence[Sequence[str]]) -> None:
    """Say in a guess whose the names are that are not the usual ones, or who begins where each conversation has others.

    `orders` are the speakers of the messages, conversation by conversation.
    """
    roles, doubts = guess.roles, guess.doubts
    counts = Counter(name for names in orders for name in names)
    known = _known(counts)
    for name, speaker in known.items():
        if name.lower() not in _USUAL:
            roles.setdefault(speaker, []).append(name)
    if roles:
        doubts.append(f"roles: by their names, {_in_words(roles)}")
    there = {*known.values()}
    system = next((name for name, speaker in known.items() if speaker == "system"), "")
    replies = sum(system in names[1:] for names in orders)
    if system and "user" in there and "assistant" not in there and replies > 0.5 * len(orders):
        roles["assistant"] = [system]
        there.add("assistant")
        doubts.append(f"roles: {system!r} replies to the user, so it is taken to be the assistant")
    unknown = [name for name in counts if name not in known]
    if len(unknown) > MAX_NAMES or (len(unknown) > 2 and not there & {"user", "assistant"}):
        more = sum(len({*names}) > 2 for names in orders)
        others = f"; {more:,} of {len(orders):,} have more than two speakers" if more else ""
        doubt = f"each conversation has its own names, such as {unknown[0]!r}: he who begins is taken to be the user"
        doubts.append(f"first: {doubt}{others}")
        guess.first = "user"
        return
    firsts = Counter(next(iter(names), "") for names in orders)
    unknown.sort(key=lambda name: (-firsts[name], -counts[name]))
    for speaker, why in (("user", "begins most conversations"), ("assistant", "is the other one")):
        if speaker not in there and unknown:
            roles[speaker] = [unknown.pop(0)]
            doubts.append(f"roles: {roles[speaker][0]!r} {why}, and is taken to be the {speaker}")
    if unknown:
        names = ", ".join(f"{name!r} ({counts[name]:,})" for name in unknown)
        doubts.append(f"roles: say whose these are, or list them under ignore: {names}")


def _known(names: Iterable[str]) -> dict[str, str]:
    """Whose the names are that are usual or likely; `q` and `a` are so only together."""
    found = {name: speaker for name in names if (speaker := speaker_of(name)) is not None}
    if len({name.lower() for name in found} & {"q", "a"}) == 1:
        return {name: speaker for name, speaker in found.items() if len(name) > 1}
    return found


def _in_words(roles: dict[str, list[str]]) -> str:
    return "; ".join(
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} taken as {speaker}"
        for speaker, names in roles.items()
    )


# Guesses of rows that are texts: conversations whose turns a mark separates, or prose.

SEPARATORS = ("__eou__", "<|endofturn|>", "<|eot|>", "[SEP]", "<sep>", "</s>", "<EOT>", " EOS ", "|||", "\t")
_MARK = re.compile(
    r"(?m)^[ \t]*(?:#{1,6} ?)?[*_]{0,2}([^\W\d_][\w .-]{0,24}?)[ \t]*(?::[*_]{0,2}|[*_]{1,2}[ \t]*:)(?=\s)"
)
_TEMPLATE = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>|<\|user\|>|### Instruction:")
_INLINE = re.compile(r"(?<![\w])(User|Human|Assistant|Bot|GPT|AI|Customer|Agent)[ \t]*:")
_OPENING = re.compile(rf"[ \t]*(?:#{{1,6}} ?)?[*_]{{0,2}}(?:{'|'.join(chats.ROLES)})[*_]{{0,2}}:")
_ENDS = (".", "!", "?", "…", "。", "！", "？", '"', "”", "»", ")", ":", ";", "*")
MIN_MARKED = 0.8  # of the texts


def marked(texts: Sequence[str]) -> Guess | None:
    """The guess of texts in which names of speakers at the start of a line begin a turn, without their column."""
    marks = [_MARK.findall(text) for text in texts]
    in_texts = Counter(name for names in marks for name in {*names})
    often = {name for name, count in in_texts.items() if count >= MIN_MARKED * len(texts)}
    speakers = [name for name in in_texts if name in often or speaker_of(name) in ("user", "assistant", "system")]
    kinds = {speaker_of(name) for name in speakers}
    known = {"user", "assistant"} <= kinds
    share = mean(len({*names} & {*speakers}) >= 2 for names in marks) if marks else 0.0
    if len(speakers if known else often) < 2 or share < (0.5 if known else MIN_MARKED):
        return None
    names = speakers if known else sorted(often)
    guess = Guess(columns={"messages": "."})
    orders = [[name for name in found if name in names] for found in marks]
    name_speakers(guess, [order for order in orders if order])
    if {*names} <= chats.ROLES.keys() and all(_OPENING.match(text.lstrip("\n")) for text in texts[:20]):
        guess.format = "markers"
    return guess


def separated(texts: Sequence[str], *, lines: bool = False) -> Guess | None:
    """The guess of texts with a separator between the turns, without their column; with `lines` each line is one."""
    for separator in (*SEPARATORS, "\n") if lines and not _is_wrapped("\n".join(texts).split("\n")) else SEPARATORS:
        turns = [text.strip().count(separator) for text in texts]
        if mean(count > 0 for count in turns) >= MIN_MARKED:
            doubt = f"turn_separator: {separator!r} is taken to separate turns, and the first one to be the user's"
            return Guess(columns={"messages": "."}, turn_separator=separator, doubts=[doubt])
    return None


def check_template(texts: Sequence[str]) -> None:
    """Raise NoGuessError for texts that a chat template rendered."""
    found = [match[0] for text in texts if (match := _TEMPLATE.search(text))]
    if found and len(found) > 0.5 * len(texts):
        raise NoGuessError(
            f"the texts hold the marks of a chat template ({found[0]}): write the messages as they were before it"
        )
    inline = [{speaker_of(name) for name in _INLINE.findall(text)} for text in texts]
    if sum({"user", "assistant"} <= speakers for speakers in inline) > 0.5 * len(texts):
        raise NoGuessError(
            "the texts hold names of speakers within a line, as '### Human: … ### Assistant: …': write each turn on a "
            "line of its own"
        )


def text_file(paragraphs: Sequence[str], *, markdown: bool) -> Guess:
    """The guess of the paragraphs of a text file. Raises NoGuessError."""
    lines = [line for paragraph in paragraphs for line in paragraph.split("\n") if line.strip()]
    whole = chats.HEADINGS.sub("", "\n\n".join(paragraphs))
    first, speakers = _MARK.match(whole), {speaker_of(name) for name in _MARK.findall(whole)}
    is_chat = first is not None and speaker_of(first[1]) is not None and {"user", "assistant"} <= speakers
    if is_chat and (guess := marked(paragraphs) or marked([whole])):
        return _markers(guess, paragraphs)
    if not markdown:
        if mean("__eou__" in line for line in lines) >= MIN_MARKED:
            return Guess(format="dailydialog")
        if (guess := marked(paragraphs)) is not None:
            return _markers(guess, paragraphs)
        if (guess := separated(lines)) is not None:
            return guess
        check_template(paragraphs)
        if sum(map(str.isalpha, "".join(lines))) <= 0.3 * sum(map(len, lines)):
            raise NoGuessError("its lines hold numbers, not text")
        if _are_turns(paragraphs):
            doubts = [
                "each line is taken to be a turn, a blank line to end the conversation: prose is format: documents"
            ]
            return Guess(format="text", doubts=doubts)
    doubts = ["it has no marks of speakers: it is taken to be prose, and each file to be a document"]
    return Guess(format="documents", doubts=doubts)


def _markers(guess: Guess, paragraphs: Sequence[str]) -> Guess:
    """The format of marked paragraphs. Raises NoGuessError for names that it does not know."""
    if guess.format == "markers":
        return Guess(format="markers")
    names = {name for text in paragraphs for name in _MARK.findall(text)}
    speakers = names & {name for found in guess.roles.values() for name in found}
    usual = {name for found in USUAL_NAMES.values() for name in found}
    shown = sorted(speakers or {name for name in names if name.lower() in usual})
    raise NoGuessError(
        f"its speakers are named {', '.join(shown)}: the format markers reads Human:, User:, Assistant: and System: in "
        'a text file; for others write JSON lines, {"text": …} for each conversation'
    )


def _is_wrapped(lines: Sequence[str]) -> bool:
    return mean(line.rstrip().endswith(_ENDS) for line in lines) < 0.5


def _are_turns(paragraphs: Sequence[str]) -> bool:
    counts = [paragraph.count("\n") + 1 for paragraph in paragraphs]
    lines = [line for paragraph in paragraphs for line in paragraph.split("\n")]
    several = mean(count >= 2 for count in counts) >= MIN_MARKED
    ended = mean(line.rstrip().endswith(_ENDS) for line in lines) >= 0.6
    headings = mean(line.startswith(("#", "- ", "* ", "|", ">")) for line in lines) > 0.1
    return several and len(counts) > 1 and ended and not headings
