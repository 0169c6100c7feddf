"""What is read equals what is kept and what is left out, counted apart from the code that is tested."""

import json
from random import Random

import pytest

import prepare
from chatmill.conversation import parse
from chatmill.record_files import read_records
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
            found = json.loads(line)
        except ValueError:
            found = None
        lines.append(line + b"\n")
        if isinstance(found, dict) and isinstance(found.get("messages"), list):
            said = found["messages"]
            messages += len(said)
            size += sum(size_of(message.get("content")) for message in said if isinstance(message, dict))
    return b"".join(lines), messages, size


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


JUNK = (
    None,
    7,
    -1.5,
    True,
    "",
    "x",
    "客",
    [],
    {},
    [None],
    ["a", "b"],
    [[]],
    {"text": "z"},
    [{"text": "y", "below": []}],
)


def mutated(value, random):
    """A value in which something is replaced, removed, or there twice."""
    if random.random() < 0.3 or not isinstance(value, list | dict) or not value:
        return random.choice(JUNK)
    if isinstance(value, dict):
        key = random.choice(sorted(value))
        kept = {name: item for name, item in value.items() if name != key or random.random() < 0.8}
        return kept | ({key: mutated(value[key], random)} if key in kept else {})
    at = random.randrange(len(value))
    new = [[], [value[at], value[at]], [mutated(value[at], random)]][random.randrange(3)]
    return [*value[:at], *new, *value[at + 1 :]]


def said(role, text, **others):
    return {"role": role, "text": text} | others


def message(random, **others):
    flags = {"rank": random.choice([None, 0, 1, 2.5, "1"]), "gone": random.random() < 0.1}
    return said(random.choice(ROLES[:5]), random.choice(TEXTS[1:]), **flags, **others)


def flat_rows(random):
    rows = [
        said("user", "Hi", id="a", tree=0),
        said("assistant", "Yes", id="b", parent="a", tree=0, rank=1, gone=False),
    ]
    for name in range(random.randint(1, 8)):
        parent = random.choice([None, *range(name), "away"]) if name else None
        rows.append(
            message(random, id=random.choice([name] * 9 + [0]), parent=parent, tree=random.choice([1, 1, 1, 2]))
        )
    return rows


def nested_rows(random):
    return [
        said("user", "Hi", below=[said("assistant", "Yes", rank=1, gone=False)]),
        *(nested(random, 3) for _ in range(3)),
    ]


def nested(random, depth):
    below = [nested(random, depth - 1) for _ in range(random.randint(0, 3))] if depth else []
    return message(random, below=below)


def rows_of_lists(random):
    rows = [{"q": ["Hi"], "c": [{"a": "Yes"}]}]
    for _ in range(4):
        asked, answered = ([random.choice(TEXTS[2:]) for _ in range(random.randint(1, 3))] for _ in range(2))
        rows.append({"q": asked, "c": [{"a": answered if random.random() < 0.3 else asked}]})
    return rows


def below(tree):
    found = [tree]
    for one in found:
        replies = one.get("below") if isinstance(one, dict) else None
        found += replies if isinstance(replies, list) else []
    return found


def items_of(row):
    """The questions and answers of a row."""
    places = row.get("c") if isinstance(row, dict) else None
    place = places[0] if isinstance(places, list) and places else None
    values = [value.get(key) if isinstance(value, dict) else None for value, key in ((row, "q"), (place, "a"))]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


TREE = {"content": "text", "rank": "rank", "deleted": "gone"}
SHAPES = {  # the rows, the columns, and the messages of a row
    "flat": (flat_rows, {"id": "id", "parent": "parent", **TREE}, lambda row: [row]),
    "flat, by trees": (flat_rows, {"id": "id", "parent": "parent", "tree": "tree", **TREE}, lambda row: [row]),
    "nested": (nested_rows, {"messages": ".", "replies": "below", **TREE}, below),
    "lists": (rows_of_lists, {"prompt": "q", "response": "c.0.a", "content": "text"}, items_of),
}


def check_shape(folder, name, random):
    make, columns, messages_of = SHAPES[name]
    rows = make(random)
    for _ in range(random.randint(0, 2)):
        rows = [row if number < 2 or random.random() < 0.5 else mutated(row, random) for number, row in enumerate(rows)]
    rows = [row for row in rows if not isinstance(row, list)]  # lines that begin with one are a JSON array
    items = [item for row in rows for item in messages_of(row)]
    messages = [item for item in items if item is not None or name.startswith("flat")]
    size = sum(size_of(item.get("text") if isinstance(item, dict) else item) for item in messages)
    if name.startswith("flat"):
        size = sum(size_of(row.get("text")) for row in rows if isinstance(row, dict))
    try:
        counts = counts_of(folder, *rows, columns=columns)
    except ValueError as error:
        problems = ("no conversations", "entries are rejected", "no message has", "no row has")
        assert any(problem in str(error) for problem in problems), (rows, error)
        return
    for what, read in (("messages", len(messages)), ("bytes", size)):
        assert counts[what]["read"] == read == counts[what]["kept"] + sum(counts[what]["rejected"].values()), rows


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_read_of_trees_and_of_lists_of_texts_is_kept_or_left_out(tmp_path, name):
    for seed in range(100):
        check_shape(tmp_path, name, Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_read_of_two_thousand_trees_and_lists_is_kept_or_left_out(tmp_path, name):
    for seed in range(1000, 1000 + round(2000 * FRACTION)):
        check_shape(tmp_path, name, Random(seed))


def counts_of(folder, *rows, **section):
    raw = folder / "raw.jsonl"
    raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = [folder / f"c.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*files, parameters={"path": raw, "format": "table", "max_reject_rate": 0.99} | section)
    return json.loads(files[2].read_text())["counts"]
