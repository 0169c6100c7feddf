"""What is read equals what is kept and what is left out, counted apart from the code that is tested."""

import json
from random import Random

import pytest

import prepare
from chatmill.conversation.chatml import parse, read_records
from support.texts import FRACTION

ROLES = ("system", "user", "assistant", "human", "gpt", "robot", "tool")
TEXTS = ("", " ", "Hi", "Grüße", "a\nb", "客", "x" * 40)


def row(random):
    messages = [
        {"role": role, "content": random.choice(TEXTS[2:])} for role in ("user", "assistant") * random.randint(1, 3)
    ]
    for _ in range(random.randint(0, 3)):
        mutate(messages, random)
    return {"messages": messages}


def mutate(messages, random):
    place = random.randrange(len(messages) + 1)
    change = random.randrange(7)
    if change == 0:
        messages.insert(place, {"role": random.choice(ROLES), "content": random.choice(TEXTS)})
    elif messages and place < len(messages):
        message = messages[place]
        if change == 1:
            message["content"] = random.choice([*TEXTS, None, 7, [{"type": "text", "text": "Hi"}], [{"type": "image"}]])
        elif change == 2:
            message["role"] = random.choice([*ROLES, None, 7])
        elif change == 3:
            message.pop(random.choice(["role", "content"]), None)
        elif change == 4:
            message["weight"] = random.choice([0, 1, 0.5, "x", None])
        elif change == 5:
            messages.pop(place)
        else:
            messages.append(dict(message))


def mutated_file(random):
    """Lines of a file, some of them not JSON, and the messages and bytes that a reader of JSON finds in it."""
    lines, messages, size = [], 0, 0
    for _ in range(random.randint(1, 4)):
        line = json.dumps(row(random), ensure_ascii=random.random() < 0.5).encode()
        if random.random() < 0.1:
            at = random.randrange(len(line))
            line = line[:at] + bytes([random.choice(b'"{}[],:x\\')]) + line[at + random.randint(0, 1) :]
        try:
            found = json.loads(line, object_pairs_hook=unique)
        except ValueError:
            found = None
        lines.append(line + b"\n")
        if isinstance(found, dict) and isinstance(found.get("messages"), list):
            said = found["messages"]
            messages += len(said)
            size += sum(size_of(message.get("content")) for message in said if isinstance(message, dict))
    return b"".join(lines), messages, size


def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def size_of(content):
    if isinstance(content, list):
        return sum(size_of(part.get("text")) for part in content if isinstance(part, dict))
    return len(content.encode("utf-8", "surrogatepass")) if isinstance(content, str) else 0


def check(folder, random):
    content, messages, size = mutated_file(random)
    raw = folder / "raw.jsonl"
    raw.write_bytes(content)
    files = [folder / f"c.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    section = {"format": "messages", "max_reject_rate": 0.99}
    section |= {"assistant_first": random.choice(["keep", "drop"]), "same_role": random.choice(["join", "reject"])}
    try:
        prepare.main(*files, parameters=section | {"path": raw})
    except ValueError as error:
        assert "no conversations" in str(error) or "entries are rejected" in str(error), content
        return
    counts = json.loads(files[2].read_text())["counts"]
    for name, read in (("messages", messages), ("bytes", size)):
        assert counts[name]["read"] == read, content
        assert read == counts[name]["kept"] + sum(counts[name]["rejected"].values()), content
    texts = [part.text for record in read_records(files[0]) for message in parse(record.text) for part in message.parts]
    assert sum(len(text.encode()) for text in texts) >= counts["bytes"]["kept"], content


def test_what_is_read_is_kept_or_left_out(tmp_path):
    for seed in range(150):
        check(tmp_path, Random(seed))


@pytest.mark.slow
def test_what_is_read_is_kept_or_left_out_in_ten_thousand_files(tmp_path):
    for seed in range(1000, 1000 + round(10_000 * FRACTION)):
        check(tmp_path, Random(seed))


def counts_of(folder, *rows, **section):
    raw = folder / "raw.jsonl"
    raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = [folder / f"c.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*files, parameters={"path": raw, "format": "table", "max_reject_rate": 0.99} | section)
    return json.loads(files[2].read_text())["counts"]


GOOD = {"p": "Hi", "r": "Yes", "m": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}
EXTRA = {"q": "now", "s": "Be kind.", "h": [["a", "bc"], ["d", "e"]]}


@pytest.mark.parametrize(
    ("columns", "messages", "size"),
    [
        ({"prompt": "p", "response": "r", "query": "q", "system": "s", "history": "h"}, 7, 21),
        ({"messages": "m", "system": "s"}, 3, 13),
    ],
)
@pytest.mark.parametrize("change", [{"l": "fr"}, {"r": None, "m": [*GOOD["m"], {"role": "robot", "content": ""}]}])
def test_what_is_read_of_a_rejected_row_is_all_that_would_be_kept(tmp_path, columns, messages, size, change):
    row = {**GOOD, **EXTRA, "l": "en"}
    section = {"columns": columns | {"language": "l"}, "languages": ["en"]}
    kept = counts_of(tmp_path, row, **section)
    added = len("\n\n") if "query" in columns else 0
    assert (kept["messages"]["kept"], kept["bytes"]["kept"] - added) == (messages, size)
    both = counts_of(tmp_path, row, row | change, **section)
    missing = len("Yes") if "query" in columns and "r" in change else 0
    assert sum(both["bytes"]["rejected"].values()) == size - missing
    assert sum(both["messages"]["rejected"].values()) == messages + ("m" in change) * (
        1 if "messages" in columns else -1
    )


def test_messages_as_json_are_counted_as_messages_in_a_rejected_row(tmp_path):
    rows = [{"m": json.dumps(GOOD["m"]), "l": language} for language in ("en", "fr")]
    counts = counts_of(tmp_path, *rows, columns={"messages": "m", "language": "l"}, languages=["en"])
    assert counts["messages"] == {"read": 4, "kept": 2, "rejected": {"language": 2}}
    assert counts["bytes"] == {"read": 10, "kept": 5, "rejected": {"language": 5}}
