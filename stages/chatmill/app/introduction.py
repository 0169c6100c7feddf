"""What a model says of itself before its first answer: its title, and prompts that it was trained to answer.

A model card, the README.md in a model's folder or the folder above, begins with fields in YAML, as on model hubs:

    ---
    widget:
    - text: "Where is my parcel?"
    ---
    # parcel-helper

A model of a project without a card has the prompts of the project's test set.
"""

import re
from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from chatmill.conversation import Record, is_document, parse, read_records

CARD = "README.md"
TEST_SET = Path("chat/test.jsonl")  # in the folder of the pipeline's outputs, above that of a model
MAX_PROMPTS = 18
MAX_LENGTH = 60  # characters of a prompt
MAX_BYTES = 64_000_000  # of a test set that is read for prompts
_CARD = re.compile(r"---\n(.*?\n)---\n(.*)", re.DOTALL)


class Introduction(NamedTuple):
    """A model's title, None if its folder has none, and the prompts to begin with."""

    title: str | None = None
    prompts: tuple[str, ...] = ()


def introduce(model: Path, *, generated_only: bool) -> Introduction:
    """The introduction of a folder or file; `generated_only` leaves out what people may have written.

    A path that does not exist, and a test set that is damaged, have none.
    """
    folders = list(islice([model.absolute(), *model.absolute().parents], 4)) if model.exists() else []
    for card in (folder / CARD for folder in folders[:3]):
        if card.is_file() and (found := read_card(card.read_bytes())):
            return found
    for file in (folder / TEST_SET for folder in folders[1:]):
        if file.exists():
            return Introduction(prompts=data_prompts(file, generated_only=generated_only))
    return Introduction()


def read_card(content: bytes) -> Introduction | None:
    """The introduction of a model card; None for another README."""
    match = _CARD.match(content.decode("utf-8", "replace").replace("\r\n", "\n"))
    return Introduction(_title(match[2]), tuple(_widgets(match[1]))) if match else None


def data_prompts(file: Path, *, generated_only: bool) -> tuple[str, ...]:
    """Short prompts of the conversations in a file, of as many kinds as it has; none if it is damaged or too large.

    They are of generated conversations, whose kinds the model was trained on. If there are none, they are of others,
    except with `generated_only`, as these may have the words of a person.
    """
    if not file.is_file() or file.stat().st_size > MAX_BYTES:  # nor of one in parts
        return ()
    generated: dict[tuple[str, str], list[str]] = {}
    others: dict[tuple[str, str], list[str]] = {}
    try:
        for record in read_records(file):
            if prompt := _prompt(record):
                name = (record.skill or {}).get("name", "")
                kinds = generated if record.skill else others
                kinds.setdefault((record.source, name), []).append(prompt)
    except ValueError:
        return ()
    kinds = generated or ({} if generated_only else others)
    ordered = [sorted(dict.fromkeys(prompts), key=_is_statement) for prompts in kinds.values()]
    return tuple(islice(_rounds(ordered), MAX_PROMPTS))


def _prompt(record: Record) -> str | None:
    """The question of a conversation with one question, if it is short and spelled as it should be."""
    if is_document(record.text) or (record.skill or {}).get("noisy"):
        return None
    asked = [message.text for message in parse(record.text) if message.role == "user"]
    return asked[0] if len(asked) == 1 and len(asked[0]) <= MAX_LENGTH and asked[0].isprintable() else None


def _is_statement(prompt: str) -> bool:
    return not prompt.endswith("?")


def _rounds(lists: list[list[str]]) -> Iterator[str]:
    """The first text of each list, then the second of each …"""
    return (text for text in chain.from_iterable(zip_longest(*lists)) if text)


def _title(text: str) -> str | None:
    heading = re.search(r"^# +(.+)$", text, re.MULTILINE)
    return heading[1].strip()[:MAX_LENGTH] if heading else None


def _widgets(fields: str) -> Iterator[str]:
    """The prompts in a card's field `widget`; none if its fields are not YAML."""
    try:
        found: Any = yaml.safe_load(fields)
    except yaml.YAMLError:
        return
    widgets = found.get("widget") if isinstance(found, dict) else None
    for widget in islice(widgets if isinstance(widgets, list) else [], MAX_PROMPTS):
        if isinstance(widget, dict) and isinstance(text := widget.get("text"), str) and text.strip():
            yield text
