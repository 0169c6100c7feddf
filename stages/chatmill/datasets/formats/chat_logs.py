"""Exports of chat programs: logs of WhatsApp, Telegram, Discord and Slack, and ChatGPT's conversations.

A log has no conversations: one is over after a quiet of PAUSE, or before the first question after MAX_MESSAGES. `roles`
says who the assistant is; all others are the user, but for those under `ignore`:

    format: whatsapp
    roles: {assistant: Ben}

Notices, deleted messages and those without text are left out and counted; an edited one has its last text.
"""

import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.conversation import ROLES, Message
from chatmill.datasets.formats.example import (
    Dropped,
    Example,
    Extent,
    RawRow,
    Reject,
    as_turns,
    describe_value,
    num_bytes,
)
from chatmill.datasets.formats.mapping import Roles
from chatmill.datasets.formats.row_readers import json_rows, lines, whole_json

_FILES = {  # whose names say that they hold chats
    "whatsapp": "*.txt",
    "telegram": "result*.json",
    "discord": "*.json",
    "slack": "*.json",
    "chatgpt": "conversations*.json",
}
PAUSE = timedelta(hours=4)
MAX_MESSAGES = 20  # a context is short, and of what is longer only the end is trained


class Line(NamedTuple):
    """A message of a log; `kind` is `text`, or why it is left out."""

    place: str
    time: datetime
    speaker: str
    text: str
    kind: str
    thread: str = ""


Chats = Iterator[list[Line] | Reject]


def read_export(path: Path, files: Sequence[Path], name: str, roles: Roles) -> Iterator[Example | Reject]:
    """The conversations of exports. Raises ValueError unless an assistant is named who speaks in their logs."""
    files = files_with_chats(files, name)
    if name == "chatgpt":
        for file in files:
            yield from map(_of_chatgpt, json_rows(file))
        return
    assistant, ignored = (_names(roles.get(role, ())) for role in ("assistant", "ignore"))
    there = speakers(files, name)
    if not assistant & _names(there):
        found = ", ".join(f"{who} ({count:,} messages)" for who, count in islice(there.items(), 8))
        raise ValueError(f"{path}: roles: who is the assistant? expected {{assistant: NAME}}, with one of {found}")
    for chat in _READERS[name](files):
        yield from [chat] if isinstance(chat, Reject) else _conversations(chat, assistant, ignored)


def files_with_chats(files: Sequence[Path], name: str) -> Sequence[Path]:
    """The files that hold chats, beside which exports have pictures and pages; all where no name is the usual one."""
    return [file for file in files if fnmatch(file.name, f"{_FILES[name]}*")] or files


def speakers(files: Sequence[Path], name: str) -> Counter[str]:
    """The messages of each speaker of a log; who replies most comes first."""
    messages, replies = Counter[str](), Counter[str]()
    for chat in _READERS[name](files_with_chats(files, name)):
        said = [] if isinstance(chat, Reject) else [line for line in chat if line.kind in ("text", "bot")]
        messages.update(line.speaker for line in said)
        pairs = [(line, later) for line, later in pairwise(said) if later.time - line.time <= PAUSE]
        replies.update(later.speaker for line, later in pairs if later.speaker != line.speaker)
    return Counter({who: messages[who] for who in sorted(messages, key=lambda who: (-replies[who], who))})


def _names(names: str | Iterable[str]) -> set[str]:
    return {name.strip().casefold() for name in ([names] if isinstance(names, str) else names)}


def _conversations(chat: list[Line], assistant: set[str], ignored: set[str]) -> Iterator[Example | Reject]:
    parts: list[list[tuple[Line, str]]] = []
    for line in chat:
        name = line.speaker.strip().casefold()
        role = "assistant" if name in assistant else "ignored_role" if name in ignored else "user"
        is_said = line.kind == "text" or (line.kind == "bot" and role == "assistant")
        role = role if is_said else line.kind
        last = parts[-1] if parts else []
        is_question = role == "user" and len(last) >= MAX_MESSAGES and last[-1][1] == "assistant"
        if not last or is_question or line.time - last[-1][0].time > PAUSE:
            parts.append([])
        parts[-1].append((line, role))
    for part in parts:
        names = sorted({line.speaker for line, _ in part if line.kind == "text"} - {_DELETED_ACCOUNT})
        messages = [(role, line.text, line.place.rpartition(":")[2].strip()) for line, role in part]
        yield _conversation(part[0][0].place, messages, names)


def _conversation(place: str, messages: list[tuple[str, str, str]], names: Sequence[str] = ()) -> Example | Reject:
    """The conversation of messages, each of which is a role, or why it is left out, a text and a place."""
    said = [Message.from_text(role, text) for role, text, _ in messages if role in ROLES]
    roles = [message.role for message in said]
    if "user" not in roles or "assistant" not in roles[roles.index("user") :]:
        size = sum(num_bytes(text) for _, text, _ in messages)
        return Reject(place, "one_sided", "no answer of the assistant", len(messages), size)
    dropped = [
        Dropped(reason, Extent(1, num_bytes(text)), f"at {place}: {text[:60]!r}")
        for reason, text, place in messages
        if reason not in ROLES
    ]
    return Example(place, None, as_turns(said), None, dropped, (), names)


# WhatsApp's text: `31.12.23, 23:59 - Anna: Hi` of Android, `[12/31/23, 11:59:30 PM] Anna: Hi` of iOS, in any language.

STAMP = re.compile(  # the parts of the date, words before the time, hour, minute, second, half of the day, the rest
    r"[\u200e\u200f\u202a-\u202e]*\[?(\d{1,4})[./년年-] ?(\d{1,2})[./월月-] ?(\d{1,4})[.일日]?,?\s"
    r"((?:[^\W\d_]{1,5}\.?\s?){0,2})(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?(?:\s?([AaPp]\.?\s?[Mm]\.?|[صم]))?"
    r"(?:\]|\s[-–])\s(.*)"
)
_AFTERNOON = ("下午", "午後", "오후", "P", "p", "م")
_MORNING = ("上午", "午前", "오전")
_ORDERS = ((2, 1, 0), (2, 0, 1), (0, 1, 2))  # of year, month and day in a date
_NO_TEXT = re.compile(
    r"(?:image|video|audio|sticker|GIF|document|Contact card) omitted|null|<[^<>\n/=]{5,60}>|\u200e.*|POLL:.*|"
    r"[^\n]+\.\w{2,4} (?:\([^()\n]+\)|• ?\u200e.*)|Missed (?:voice|video) call|"
    r"(?:Waiting for this message|Messages and calls are end-to-end encrypted)\..*",
    re.DOTALL,
)
_FILE_ABOVE_CAPTION = re.compile(r"\A[^\n]+\.\w{2,4} \([^()\n]+\)\n")
# What WhatsApp writes after a message that was edited, or whose file was left out.
_END_MARK = re.compile(r"(?:\u200e?<(?=[^<>]* )[^<>\n/=]{12,60}>|\u200e[^\u200e\n]{5,40})\Z")
_DELETED = re.compile(
    r"\u200e?(?:You deleted this message|This message was deleted|Du hast diese Nachricht gelöscht|Diese Nachricht "
    r"wurde gelöscht|Eliminaste este mensaje|Se eliminó este mensaje|Vous avez supprimé ce message|Ce message a été "
    r"supprimé|Hai eliminato questo messaggio|Questo messaggio è stato eliminato|Mensagem apagada|Você apagou esta "
    r"mensagem|Je hebt dit bericht verwijderd|Dit bericht is verwijderd|Данное сообщение удалено|Bu mesaj silindi)\.?"
)


def _whatsapp(files: Sequence[Path]) -> Chats:
    for file in files:
        found: list[tuple[str, re.Match[str], list[str]]] = []  # place, stamp, lines of the message
        for row in lines(file):
            if isinstance(row, Reject):
                yield row
            elif (match := STAMP.match(row[1])) is not None:
                found.append((row[0], match, [match[9]]))
            elif found:
                found[-1][2].append(row[1])
        if not found:
            raise ValueError(f"{file}: no chat of WhatsApp: expected lines such as '31.12.23, 23:59 - Anna: Hi'")
        times = _times(file, [match for _, match, _ in found])
        yield [_line(place, time, "\n".join(text)) for (place, _, text), time in zip(found, times, strict=True)]


def _times(file: Path, stamps: Sequence[re.Match[str]]) -> list[datetime]:
    """The times of messages, in that order of day, month and year in which they go back least."""
    found = []
    for order in _ORDERS:
        try:
            times = [_time(stamp, order) for stamp in stamps]
        except ValueError:
            continue
        found.append((sum(later < time for time, later in pairwise(times)), times))
    if not found:
        raise ValueError(f"{file}: its dates fit no order of day, month and year")
    return min(found, key=lambda one: one[0])[1]


def _time(stamp: re.Match[str], order: tuple[int, int, int]) -> datetime:
    year, month, day = (int(stamp[at + 1]) for at in order)
    hour, half = int(stamp[5]), stamp[8] or stamp[4]
    if half.startswith(_AFTERNOON) or stamp[8] or half.startswith(_MORNING):
        hour = hour % 12 + 12 * half.startswith(_AFTERNOON)
    return datetime(year + 2000 * (year < 100), month, day, hour, int(stamp[6]), int(stamp[7] or 0))


def _line(place: str, time: datetime, text: str) -> Line:
    """A message from what follows its time, `Name: text`; without a name it is a notice of the program."""
    name, colon, said = text.partition(": ")
    said = _FILE_ABOVE_CAPTION.sub("", said, count=1)
    if (mark := _END_MARK.search(said)) and not _NO_TEXT.fullmatch(said):
        said = said[: mark.start()].rstrip()
    if not colon or '"' in name or "\n" in name:
        return Line(place, time, "", text, "notice")
    is_empty = _NO_TEXT.fullmatch(said) or not said.strip()
    kind = "deleted" if _DELETED.fullmatch(said) else "no_text" if is_empty else "text"
    return Line(place, time, name.strip("\u200e~ \u202f\xa0"), said, kind)


# JSON: Telegram's result.json of a chat or of all, DiscordChatExporter's of a channel, Slack's folders of days.


def _of_files(files: Sequence[Path], line: Callable[[str, Any], Line]) -> Chats:
    """The chat of each file, or those in its list of chats."""
    for file in files:
        content = whole_json(file)
        chats = content.get("chats") if isinstance(content, dict) else None
        every = chats.get("list") if isinstance(chats, dict) else None
        for chat in every if isinstance(every, list) else [content]:
            yield from _read(file, chat.get("messages") if isinstance(chat, dict) else chat, line)


def _read(file: Path, entries: Any, line: Callable[[str, Any], Line]) -> Chats:
    """A reject for each entry that is no message, and then all others."""
    if not isinstance(entries, list):
        raise ValueError(f"{file}: expected a list of messages, got {describe_value(entries)}")
    chat: list[Line] = []
    for number, entry in enumerate(entries, start=1):
        place = f"{file}: message {number}"
        try:
            said = line(place, entry)
            if not all(isinstance(value, str) for value in (said.speaker, said.text, said.thread)):
                raise TypeError("expected texts")
            chat.append(said)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield Reject(place, "bad_row", f"no message: {type(error).__name__} {error}, in {describe_value(entry)}", 1)
    yield chat


def _instant(date: str) -> datetime:
    """The time in UTC, or as it is written where the zone is not."""
    time = datetime.fromisoformat(date)
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


_DELETED_ACCOUNT = "Deleted Account"


def _telegram_line(place: str, entry: Any) -> Line:
    said = entry.get("text") or entry.get("text_entities") or ""
    parts = [said] if isinstance(said, str) else said
    text = "".join(part if isinstance(part, str) else part["text"] for part in parts)
    kind = "notice" if entry["type"] != "message" else "text" if text.strip() else "no_text"
    kind = "forwarded" if kind == "text" and entry.get("forwarded_from") else kind
    time = _instant(entry["date"]) if "date" in entry else datetime.fromtimestamp(float(entry["date_unixtime"]))
    return Line(place, time, entry.get("from") or _DELETED_ACCOUNT, text, kind)


_EMOJI = re.compile(r"<a?(:\w+:)\d+>")


def _discord_line(place: str, entry: Any) -> Line:
    author, text = entry["author"], _EMOJI.sub(r"\1", entry["content"])
    said = "bot" if author.get("isBot") else "text"
    kind = "notice" if entry["type"] not in ("Default", "Reply") else said if text.strip() else "no_text"
    return Line(place, _instant(entry["timestamp"]), author.get("nickname") or author["name"], text, kind)


_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_WITH_TEXT = (None, "thread_broadcast", "me_message", "file_share", "bot_message")
_LINK = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def _slack(files: Sequence[Path]) -> Chats:
    days = [file for file in files if _DAY.fullmatch(file.name.partition(".")[0])]
    if not days:
        raise ValueError(f"{files[0]}: expected the folder of a channel or of all, with files such as 2023-12-31.json")
    users: dict[str, str] = {}
    for file in {place / "users.json" for day in days for place in (day.parent, day.parent.parent)}:
        for user in whole_json(file) if file.is_file() else ():
            users[user["id"]] = user.get("real_name") or user.get("name") or user["id"]
    channels = defaultdict[Path, list[Path]](list)
    for day in days:
        channels[day.parent].append(day)
    for channel in channels.values():
        threads = defaultdict[str, list[Line]](list)
        for day in channel:
            for chat in _read(day, whole_json(day), partial(_slack_line, users=users)):
                if isinstance(chat, Reject):
                    yield chat
                else:
                    for line in chat:
                        threads[line.thread].append(line)
        yield from threads.values()


def _slack_line(place: str, entry: Any, users: dict[str, str]) -> Line:
    def shown(link: re.Match[str]) -> str:
        mark, target, label = link.groups()
        return f"{mark.replace('!', '@')}{label or users.get(target, target)}" if mark else label or target

    text = html.unescape(_LINK.sub(shown, entry.get("text") or ""))
    user = entry.get("user") or entry.get("bot_id") or ""
    profile = {**(entry.get("user_profile") or {}), **(entry.get("bot_profile") or {})}
    speaker = users.get(user) or profile.get("real_name") or profile.get("name") or entry.get("username") or user
    said = "bot" if entry.get("bot_id") or entry.get("subtype") == "bot_message" else "text"
    kind = "notice" if entry.get("subtype") not in _WITH_TEXT else said if text.strip() else "no_text"
    return Line(place, datetime.fromtimestamp(float(entry["ts"]), UTC), speaker, text, kind, entry.get("thread_ts", ""))


_READERS: dict[str, Callable[[Sequence[Path]], Chats]] = {
    "whatsapp": _whatsapp,
    "telegram": partial(_of_files, line=_telegram_line),
    "discord": partial(_of_files, line=_discord_line),
    "slack": _slack,
}
LOGS = tuple(_READERS)
EXPORTS = (*LOGS, "chatgpt")


# ChatGPT's conversations.json: trees of messages, of which the shown path is read.


def _of_chatgpt(row: RawRow | Reject) -> Example | Reject:
    if isinstance(row, Reject):
        return row
    place, entry = row
    try:
        mapping, node, path = entry["mapping"], entry["current_node"], list[str]()
        while node is not None and len(path) <= len(mapping):
            path.append(node)
            node = mapping[node].get("parent")
        shown = [(mapping[name].get("message"), True) for name in reversed(path)]
        others = [(node.get("message"), False) for name, node in mapping.items() if name not in {*path}]
        messages = [_chatgpt_message(message, on_path) for message, on_path in shown + others if message]
    except (AttributeError, KeyError, TypeError) as error:
        return Reject(place, "bad_row", f"no conversation of ChatGPT: {type(error).__name__} {error}")
    return _conversation(place, [message for message in messages if message[1] or message[0] in ROLES[1:]])


_CITATION = re.compile("\ue200[^\ue201]*\ue201|【[^【】]*†[^【】]*】")


def _chatgpt_message(message: dict[str, Any], on_path: bool) -> tuple[str, str, str]:
    content = message["content"]
    parts = content.get("parts") or ()
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]  # the text of spoken parts
    text = _CITATION.sub("", "".join(text for text in texts if isinstance(text, str)))
    role = message["author"]["role"]
    is_said = content["content_type"] in ("text", "multimodal_text") and message.get("recipient") in (None, "all")
    if not is_said or role not in ROLES:
        return "tool", text or str(content.get("text") or ""), ""
    return (role if text.strip() else "no_text") if on_path else "other_reply", text, str(message.get("id", ""))


# Tells which program wrote a file.

_KEYS = {
    "chatgpt": {"mapping", "current_node"},
    "telegram": {"date", "from_id", "text"},
    "discord": {"timestamp", "author", "content"},
    "slack": {"ts", "user", "text", "type"},
}


def export_format(rows: Iterable[Any]) -> str | None:
    """The format of the first rows of a file, where a chat program wrote them: JSON values, or texts of lines."""
    rows = list(rows)[:50]
    stamped = [row for row in rows if isinstance(row, str) and STAMP.match(row)]
    if rows and len(stamped) > len(rows) / 2:
        return "whatsapp"
    entries = [entry for row in rows for entry in _inner(row) if isinstance(entry.get("author", {}), dict)]
    return next((name for name, keys in _KEYS.items() if any(keys <= entry.keys() for entry in entries)), None)


def _inner(value: Any, depth: int = 4) -> Iterator[dict[str, Any]]:
    """The objects in a value, the first few of each list."""
    if isinstance(value, dict) and depth:
        yield value
        for inner in value.values():
            yield from _inner(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value[:3]:
            yield from _inner(inner, depth)
