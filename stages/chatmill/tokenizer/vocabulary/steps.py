"""The JSON of the steps before and after an external tokenizer's model, as data.

chatmill.tokenizer.vocabulary.preprocessing says what it holds, and runs it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

METASPACE = "\u2581"
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}


def drop_harmless_steps(steps: str | None) -> str | None:
    """The steps without those that put a space before every text or normalise to NFC.

    None if no other steps remain; others change text, so that its tokens are not its bytes.
    """
    if steps is None:
        return None
    library, content = library_of(steps)
    if library == "sentencepiece":
        remaining = content | {"dummy_prefix": False}
        return json.dumps({library: remaining}, sort_keys=True) if any(remaining.values()) else None
    mark = replace_step(String=" ", content=METASPACE)
    harmless = ({"type": "NFC"}, mark, {"type": "Prepend", "prepend": METASPACE})
    normalizers = list(flat("normalizer", content["normalizer"]))
    if any(step not in harmless for step in normalizers):
        return steps
    splits_at = flat("pre_tokenizer", content["pre_tokenizer"])
    if all(_marks_spaces_alone(step) or (mark in normalizers and _splits_at_spaces(step)) for step in splits_at):
        return None
    if mark in normalizers:
        return steps
    splits = json.dumps({library: content | {"normalizer": None}}, sort_keys=True, ensure_ascii=False)
    return splits if splits_only(splits) else steps


def adds_prefix_space(steps: str | None) -> bool:
    """Whether the steps put a space before every text."""
    if steps is None:
        return False
    library, content = library_of(steps)
    if library == "sentencepiece":
        prefix: bool = content["dummy_prefix"]
        return prefix
    metaspaces = [step for step in flat("pre_tokenizer", content["pre_tokenizer"]) if step["type"] == "Metaspace"]
    return {"type": "Prepend", "prepend": METASPACE} in list(flat("normalizer", content["normalizer"])) or any(
        step.get("prepend_scheme", "always") != "never" for step in metaspaces
    )


def _marks_spaces_alone(step: dict[str, Any]) -> bool:
    """Whether a step only replaces spaces by U+2581, possibly after adding one at the start, and splits nothing."""
    return step["type"] == "Metaspace" and step.get("replacement") == METASPACE and step.get("split") is False


def _splits_at_spaces(step: dict[str, Any]) -> bool:
    """Whether a step splits at nothing but spaces, of which a text has none once they are marked."""
    return step["type"] == "Split" and step.get("pattern") == {"String": " "} and step.get("invert") is False


def exact_scores(steps: str, scores: Sequence[float]) -> list[float]:
    """The scores of all tokens as in their file."""
    _, content = library_of(steps)
    exact = content.get("scores", [])
    return [*exact, *scores[len(exact) :]]


def splits_only(steps: str) -> bool:
    """Whether the steps only split text, so that its characters are unchanged."""
    library, content = library_of(steps)
    if library != "tokenizers" or content["normalizer"] is not None:
        return False
    return all(keeps_characters(step) for step in flat("pre_tokenizer", content["pre_tokenizer"]))


def keeps_characters(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer only splits text."""
    match step:
        case {"type": "Digits"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return str(behavior).lower() != "removed"
    return False


def types_of(normalizer: dict[str, Any] | None) -> list[str]:
    """The types of a normaliser's steps."""
    return [step["type"] for step in flat("normalizer", normalizer)]


def patterns_of(steps: str) -> list[str]:
    """The regular expressions by which the steps split and replace."""
    library, content = library_of(steps)
    if library != "tokenizers":
        return []
    found = (step for place in ("normalizer", "pre_tokenizer") for step in flat(place, content[place]))
    patterns = (step["pattern"] for step in found if isinstance(step.get("pattern"), dict))
    return [pattern["Regex"] for pattern in patterns if "Regex" in pattern]


def library_of(steps: str) -> tuple[str, dict[str, Any]]:
    """The library of the steps, and their settings."""
    ((library, content),) = json.loads(steps).items()
    return library, content


def replace_step(content: str, **pattern: str) -> dict[str, Any]:
    """A normaliser that replaces what a String or Regex matches."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def flat(place: str, step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The step, or the steps of a sequence. Raises ValueError for a sequence of sequences."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for one in step[_LISTS.get(place, "decoders")]:
        if one["type"] == "Sequence":
            raise ValueError(f"its {place} is a sequence of sequences")
        yield one
