"""Exports of chat programs; each test writes one in the shape of its program."""

import json
from pathlib import Path

import pytest
import yaml

from chatmill.app.cli import main
from chatmill.conversation import Record, parse
from chatmill.datasets.records import records
from chatmill.datasets.repair import SourceParameters, Tally
from support.mutated_files import check_mutations

ANDROID = """\
31.12.23, 22:58 - Nachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt.
31.12.23, 22:59 - Anna: Kommst du?
31.12.23, 23:01 - Ben: Ja,
gleich.
31.12.23, 23:02 - Anna: <Medien ausgeschlossen>
31.12.23, 23:03 - Anna: Bring Brot mit!
31.12.23, 23:04 - Ben: Mach ich <Diese Nachricht wurde bearbeitet>
31.12.23, 23:05 - Ben: Diese Nachricht wurde gelöscht.
01.01.24, 09:00 - Anna: Frohes neues Jahr!
01.01.24, 09:30 - Ben: IMG-20240101-WA0001.jpg (Datei angehängt)
Danke: dir auch
"""
IOS = """\
[12/31/23, 10:59:00\u202fPM] Anna: \u200eMessages and calls are end-to-end encrypted.
[12/31/23, 10:59:30\u202fPM] Anna: Kommst du?
[12/31/23, 11:01:00\u202fPM] Ben: Ja,
gleich.
\u200e[12/31/23, 11:02:00\u202fPM] Anna: \u200eimage omitted
[12/31/23, 11:03:00\u202fPM] Anna: Bring Brot mit!
[12/31/23, 11:04:00\u202fPM] Ben: Mach ich \u200e<This message was edited>
[1/1/24, 9:00:00\u202fAM] Anna: Frohes neues Jahr!
[1/1/24, 9:30:00\u202fAM] Ben: Danke: dir auch
"""
TALK = [
    ("2023-12-31T22:59:00", "Anna", "Kommst du?"),
    ("2023-12-31T23:01:00", "Ben", "Ja,\ngleich."),
    ("2023-12-31T23:02:00", "Anna", ""),
    ("2023-12-31T23:03:00", "Anna", "Bring Brot mit!"),
    ("2023-12-31T23:04:00", "Ben", "Mach ich"),
    ("2024-01-01T09:00:00", "Anna", "Frohes neues Jahr!"),
    ("2024-01-01T09:30:00", "Ben", "Danke: dir auch"),
]
EXPORTS = [("android", "whatsapp"), ("ios", "whatsapp"), ("telegram", "telegram"), ("discord", "discord")]
FIRST = ["user: Kommst du?", "assistant: Ja,\ngleich.", "user: Bring Brot mit!", "assistant: Mach ich"]
SECOND = ["user: Frohes neues Jahr!", "assistant: Danke: dir auch"]


def telegram(**chat):
    messages = [{"id": 1, "type": "service", "date": "2023-12-31T22:58:00", "actor": "Anna", "text": ""}]
    for date, name, text in TALK:
        parts = [text[:4], {"type": "bold", "text": text[4:]}] if text else ""
        messages.append({"type": "message", "date": date, "from": name, "from_id": f"user{name}", "text": parts})
    return {"name": "Anna", "type": "personal_chat", "id": 7, "messages": messages}


def discord():
    said: list[dict] = [
        {"type": "Default", "timestamp": f"{date}.1230000+00:00", "content": text, "author": {"name": name}}
        for date, name, text in TALK
    ]
    joined = said[0] | {"type": "GuildMemberJoin", "content": "Joined."}
    return {"guild": {"id": "0"}, "channel": {"id": "1"}, "messages": [joined, *said]}


def write_slack(folder):
    users = [{"id": "U1", "name": "anna", "real_name": "Anna"}, {"id": "U2", "name": "Ben"}]
    (folder / "users.json").write_text(json.dumps(users))
    (folder / "general").mkdir()
    days = {}
    for number, (date, name, text) in enumerate(TALK):
        entry = {"type": "message", "user": "U1" if name == "Anna" else "U2", "text": text, "ts": f"{seconds(date)}.0"}
        days.setdefault(date[:10], []).append(entry | ({"thread_ts": "5"} if number > 4 else {}))
    days["2023-12-31"].insert(
        0, {"type": "message", "subtype": "channel_join", "user": "U1", "text": "", "ts": "82000"}
    )
    for day, entries in days.items():
        (folder / "general" / f"{day}.json").write_text(json.dumps(entries))
    return folder


def seconds(date):
    hours = {"2023-12-31": 0, "2024-01-01": 24}[date[:10]] + int(date[11:13])
    return 3600 * hours + 60 * int(date[14:16])


def write(folder: Path, name: str) -> Path:
    if name == "slack":
        return write_slack(folder)
    file = folder / {"android": "WhatsApp Chat.txt", "ios": "_chat.txt"}.get(name, "result.json")
    text = {"android": ANDROID, "ios": IOS.replace("\n", "\r\n"), "discord": json.dumps(discord(), indent=2)}
    text["telegram"] = json.dumps(telegram(), indent=1)
    text["telegram_all"] = json.dumps({"about": "", "chats": {"list": [telegram()]}})
    file.write_bytes(text[name].encode())
    return file


def read(path, name, **parameters):
    roles = {} if name == "chatgpt" else {"roles": {"assistant": "ben"}}
    parameters = {"path": path, "format": name, "join_with": " "} | roles | parameters
    tally = Tally()
    entries = list(records("log", SourceParameters.model_validate(parameters), tally))
    found = [parse(entry.text) for entry in entries if isinstance(entry, Record)]
    texts = [[f"{message.role}: {message.text}" for message in conversation] for conversation in found]
    return texts, {name: count for name, count in tally.content()["messages"]["rejected"].items() if count}


@pytest.mark.parametrize(
    ("name", "format", "left_out"),
    [
        ("android", "whatsapp", {"deleted": 1, "no_text": 1, "notice": 1}),
        ("ios", "whatsapp", {"no_text": 2}),
        ("telegram", "telegram", {"no_text": 1, "notice": 1}),
        ("telegram_all", "telegram", {"no_text": 1, "notice": 1}),
        ("discord", "discord", {"no_text": 1, "notice": 1}),
        ("slack", "slack", {"no_text": 1, "notice": 1}),
    ],
)
def test_a_log_becomes_conversations_of_what_was_said(tmp_path, capsys, name, format, left_out):
    path = write(tmp_path, name)
    assert read(path, format) == ([FIRST, SECOND], left_out)
    assert main(["prepare", "--look", str(path)]) == 0
    (section,) = yaml.safe_load(capsys.readouterr().out)["prepare"].values()
    assert section == {"path": str(path), "format": format, "roles": {"assistant": "Ben"}}


def test_chatgpts_conversations_are_read_along_the_shown_path(tmp_path):
    def node(name, parent, role, text, **others):
        content = {"content_type": "text", "parts": [text]}
        message = {"author": {"role": role}, "content": content, "recipient": "all"} | others
        return {name: {"id": name, "parent": parent, "message": message, "children": []}}

    mapping = {"root": {"id": "root", "parent": None, "message": None}}
    mapping |= node("s", "root", "system", "") | node("u", "s", "user", "Hi") | node("old", "u", "assistant", "Ho")
    mapping |= node("call", "u", "assistant", "{}", recipient="browser") | node("a", "call", "assistant", "Hello!")
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"title": "", "mapping": mapping, "current_node": "a"}, {"title": "damaged"}]))
    texts, left_out = read(file, "chatgpt")
    assert texts == [["user: Hi", "assistant: Hello!"]]
    assert left_out == {"other_reply": 1, "tool": 1}


def test_who_the_assistant_is_must_be_said(tmp_path):
    file = write(tmp_path, "android")
    for roles in ({"assistant": "Cora"}, None):
        with pytest.raises(
            ValueError, match=r"who is the assistant\? expected \{assistant: NAME\}, with one of Ben \(3 "
        ):
            read(file, "whatsapp", roles=roles)
    texts, _ = read(file, "whatsapp", roles={"assistant": ["Anna"], "ignore": "Ben"})
    assert texts == []


STAMPS = [
    "5.3.2024 klo {}.{} - ", "05/03/2024 à {}:{} - ", "2024. 03. 05. {}:{} - ", "[05.03.24, {}:{}:00] ",
    "13/3/24, {}:{} - ", "[2024/3/5 {half[0]}午{h12}:{1}:01] ", "2024년 3월 5일 오{half[1]} {h12}:{1} - ",
    "٥/٣/٢٠٢٤, {h12}:{1} {half[2]} - ",
    "5/3/2024, {h12}:{1} {half[3]}. m. - ", "3/5/24, {h12}:{1}\u202f{half[3]}m - ", "3/13/24, {h12}:{1} {half[3]}M - ",
]  # fmt: skip


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_log_of_whatsapp_is_read_in_any_language(tmp_path, stamp):
    said = ["Anna: Hi\u2028you", "Ben: photo \u200eimage omitted", "Ben: Invoice.pdf • \u200e4 pages"]
    said += ["Anna: <img src=x>", "Ben: Yes <Message was edited>"]  # after more than four hours
    times = [(11, 58), (12, 30), (12, 31), (16, 45), (16, 46)]
    stamps = [
        stamp.format(f"{hour:02}", f"{minute:02}", h12=hour % 12 or 12, half="上전صa" if hour < 12 else "下후مp")
        for hour, minute in times
    ]
    file = tmp_path / "chat.txt"
    file.write_text("".join(f"{at}{text}\n" for at, text in zip(stamps, said, strict=True)), encoding="utf-8")
    expected = [["user: Hi\u2028you", "assistant: photo"], ["user: <img src=x>", "assistant: Yes"]]
    assert read(file, "whatsapp") == (expected, {"no_text": 1})


def test_personal_data_is_replaced_in_rejects_too(tmp_path):
    file = tmp_path / "chat.txt"
    file.write_text(
        "1/31/24, 9:00 AM - Anna Maria Kern: Ben, is it ben@kern.example, +49 170 123 4567, @15550102233, "
        "GB82 WEST 1234 5698 7654 32 or 192.0.2.7?\n"
        "1/31/24, 9:01 AM - Ben: Both, anna! Room 12, 2024-01-31, benign.\n"
        "1/31/24, 9:02 AM - Anna Maria Kern: ann@kern.example is Ben's.\n"
    )
    parameters = SourceParameters(path=file, format="whatsapp", roles={"assistant": "Ben"}, redact=True)
    kept, dropped = records("log", parameters, Tally())
    expected = [
        ["[name], is it [email], [phone], [phone], [iban] or [ip]?"],
        ["Both, [name]! Room 12, 2024-01-31, benign."],
    ]
    assert [[part.text for part in message.parts] for message in parse(kept.text)] == expected
    assert (dropped.reason, dropped.detail) == ("after_last_answer", "redacted")


@pytest.mark.parametrize("name", ["whatsapp", "telegram", "discord", "slack", "chatgpt"])
def test_another_file_is_refused_or_rejected(tmp_path, name):
    file = tmp_path / "other.json"
    for text in ('{"a": 1}', "[1, 2]", '{"messages": [1, {"type": 2}]}', "Hello", '{"chats": {"list": [3]}}'):
        file.write_text(text)
        try:
            assert read(file, name)[0] == []
        except ValueError as error:
            assert str(file) in str(error)


def test_a_table_with_the_columns_of_a_log_is_none(tmp_path, capsys):
    file = tmp_path / "log.csv"
    file.write_text("timestamp,author,content,id\n1,user,Hi,a\n2,bot,Yo,a\n3,user,Hi,b\n4,bot,Yo,b\n")
    assert main(["prepare", "--look", str(file)]) == 0
    assert "format: table" in capsys.readouterr().out


def test_long_lines_take_no_longer_than_their_length(tmp_path):
    file = tmp_path / "chat.txt"
    texts = [" " * 500_000 + "x", "a.b " * 200_000, "a.txt (b " * 100_000, "\u200e" * 200_000 + "x", "< a" * 200_000]
    file.write_text("".join(f"1/31/24, 9:00 AM - Ben: {text}\n" for text in texts))
    assert read(file, "whatsapp")[1] == {"one_sided": 5}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format"), EXPORTS)
def test_all_of_a_mutated_export_is_kept_or_counted(tmp_path, name, format, record_property, capfd):
    file = write(tmp_path, name)
    check_mutations(file, file.read_bytes(), 20, record_property, format=format, roles={"assistant": "ben"})
