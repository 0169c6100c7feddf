"""Tells whose the names of speakers are: those of the user, of the assistant, of others."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatmill.datasets.formats.mapping import USUAL_NAMES, Speaker

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


class Speakers(NamedTuple):
    """Whose the names are, where they are not the usual ones, and what a person should check."""

    roles: dict[str, list[str]]
    first: str | None
    doubts: list[str]


def speaker_of(name: str) -> str | None:
    """Whose a name is that is usual or likely; None for others."""
    key = name.strip().lower().replace(" ", "_")
    return _USUAL.get(name.lower()) or _PROBABLE.get(key)


def name_speakers(orders: Sequence[Sequence[str]]) -> Speakers:
    """Whose the names are. `orders` are the speakers of the messages, conversation by conversation."""
    counts = Counter(name for names in orders for name in names)
    known = _known(counts)
    result = Speakers({}, None, [])
    for name, speaker in known.items():
        if name.lower() not in _USUAL:
            result.roles.setdefault(speaker, []).append(name)
    if result.roles:
        result.doubts.append(f"roles: by their names, {_in_words(result.roles)}")
    there = {*known.values()}
    system = next((name for name, speaker in known.items() if speaker == "system"), "")
    if system and "user" in there and "assistant" not in there and _alternates(orders, system):
        result.roles["assistant"] = [system]
        there.add("assistant")
        result.doubts.append(f"roles: {system!r} replies to the user, so it is taken to be the assistant")
    unknown = [name for name in counts if name not in known]
    if len(unknown) > MAX_NAMES or (len(unknown) > 2 and not there & {"user", "assistant"}):
        return _by_order(orders, unknown, result)
    firsts = Counter(next(iter(names), "") for names in orders)
    unknown.sort(key=lambda name: (-firsts[name], -counts[name]))
    for speaker, why in (("user", "begins most conversations"), ("assistant", "is the other one")):
        if speaker not in there and unknown:
            result.roles[speaker] = [unknown.pop(0)]
            result.doubts.append(f"roles: {result.roles[speaker][0]!r} {why}, and is taken to be the {speaker}")
    if unknown:
        names = ", ".join(f"{name!r} ({counts[name]:,})" for name in unknown)
        result.doubts.append(f"roles: say whose these are, or list them under ignore: {names}")
    return result


def _known(names: Iterable[str]) -> dict[str, str]:
    """Whose the names are that are usual or likely; `q` and `a` are so only together."""
    found = {name: speaker for name in names if (speaker := speaker_of(name)) is not None}
    if len({name.lower() for name in found} & {"q", "a"}) == 1:
        return {name: speaker for name, speaker in found.items() if len(name) > 1}
    return found


def _by_order(orders: Sequence[Sequence[str]], unknown: list[str], found: Speakers) -> Speakers:
    """Who begins is the user, where each conversation has two speakers with names of its own."""
    two = sum(len({*names}) <= 2 for names in orders)
    doubt = f"first: each conversation has its own names, such as {unknown[0]!r}: he who begins is taken to be the user"
    if two < len(orders):
        doubt += f"; {len(orders) - two:,} of {len(orders):,} have more than two speakers"
    return found._replace(first="user", doubts=[*found.doubts, doubt])


def _alternates(orders: Sequence[Sequence[str]], name: str) -> bool:
    """Whether a speaker speaks more often than at the beginning."""
    return sum(name in names[1:] for names in orders) > 0.5 * len(orders)


def _in_words(roles: dict[str, list[str]]) -> str:
    return "; ".join(
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} taken as {speaker}"
        for speaker, names in roles.items()
    )
