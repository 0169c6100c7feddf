"""The steps before and after an external tokenizer's model: normalisation, splits, and what undoes them.

A vocabulary keeps them as JSON, in the words of the library that they come from:

    {"tokenizers": {"normalizer": {"type": "NFC"}, "pre_tokenizer": …, "post_processor": …, "decoder": …}}
    {"sentencepiece": {"charsmap": "…", "dummy_prefix": true, "remove_extra_whitespaces": true}}

`"scores"` beside the steps of `tokenizers` are scores that float32 does not hold exactly.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from ctypes import c_float
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import NormalizerSpec

METASPACE = "\u2581"
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
PREPEND = {"type": "Prepend", "prepend": METASPACE}
NORMALIZATION_SAMPLES = ("Café", "two  blanks", "a\tb\n", "e\u0301", "ﬁ", "Ｈｉ", "12 + 3", " x ", "\0", "word")


def float32(value: float) -> float:
    """The nearest float32, which every format stores exactly."""
    return c_float(value).value


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
    harmless = ({"type": "NFC"}, mark, PREPEND)
    normalizers = list(flat("normalizer", content["normalizer"]))
    if any(step not in harmless for step in normalizers):
        return steps

    def splits_nothing(step: dict[str, Any]) -> bool:
        """Whether a step only replaces spaces by U+2581, or splits at spaces, of which a marked text has none."""
        match step:
            case {"type": "Metaspace", "replacement": "\u2581", "split": False}:
                return True
            case {"type": "Split", "pattern": {"String": " "}, "invert": False}:
                return mark in normalizers
        return False

    if all(map(splits_nothing, flat("pre_tokenizer", content["pre_tokenizer"]))):
        return None
    splits = json.dumps({library: content | {"normalizer": None}}, sort_keys=True, ensure_ascii=False)
    return splits if mark not in normalizers and splits_only(splits) else steps


def adds_prefix_space(steps: str | None) -> bool:
    if steps is None:
        return False
    library, content = library_of(steps)
    if library == "sentencepiece":
        return bool(content["dummy_prefix"])
    if PREPEND in flat("normalizer", content["normalizer"]):
        return True
    splits = flat("pre_tokenizer", content["pre_tokenizer"])
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in splits)


def marks_spaces(steps: str) -> bool:
    """Whether the steps write spaces as U+2581."""
    library, content = library_of(steps)
    if library != "tokenizers" or replace_step(String=" ", content=METASPACE) in flat(
        "normalizer", content["normalizer"]
    ):
        return True
    return any(step["type"] == "Metaspace" for step in flat("pre_tokenizer", content["pre_tokenizer"]))


def splits_only(steps: str) -> bool:
    """Whether the steps only split text, so that its characters are unchanged."""
    library, content = library_of(steps)
    if library != "tokenizers" or content["normalizer"] is not None:
        return False
    return all(keeps_characters(step) for step in flat("pre_tokenizer", content["pre_tokenizer"]))


def keeps_characters(step: dict[str, Any]) -> bool:
    match step:
        case {"type": "Digits"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return str(behavior).lower() != "removed"
    return False


def patterns_of(steps: str) -> list[str]:
    """The regular expressions by which the steps split and replace."""
    library, content = library_of(steps)
    if library != "tokenizers":
        return []
    found = (step for place in ("normalizer", "pre_tokenizer") for step in flat(place, content[place]))
    patterns = (step["pattern"] for step in found if isinstance(step.get("pattern"), dict))
    return [pattern["Regex"] for pattern in patterns if "Regex" in pattern]


def library_of(steps: str) -> tuple[str, dict[str, Any]]:
    ((library, content),) = json.loads(steps).items()
    return library, content


def replace_step(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


# What undoes U+2581 for a space, and <0x0A> for a byte
DECODERS = [replace_step(String=METASPACE, content=" "), {"type": "ByteFallback"}, {"type": "Fuse"}]


def flat(place: str, step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The step, or the steps of a sequence."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for one in step[_LISTS[place]]:
        yield from flat(place, one)


def from_tokenizers_json(content: dict[str, Any], scores: Sequence[float] = ()) -> str:
    """The steps of a tokenizer.json, with exact `scores` if given."""
    steps = {place: content.get(place) for place in COMPONENTS} | ({"scores": list(scores)} if scores else {})
    return json.dumps({"tokenizers": steps}, sort_keys=True, ensure_ascii=False)


def normalizer_steps(normalizer: NormalizerSpec) -> str:
    """The steps of a SentencePiece model, also if they only replace spaces by U+2581."""
    content = {
        "charsmap": base64.b64encode(normalizer.precompiled_charsmap).decode(),
        "dummy_prefix": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
    }
    return json.dumps({"sentencepiece": content}, sort_keys=True)


def to_normalizer_spec(steps: str | None) -> NormalizerSpec:
    """The normaliser of a SentencePiece model with these steps. Raises ValueError for steps of another library."""
    none: dict[str, Any] = {"charsmap": "", "dummy_prefix": False, "remove_extra_whitespaces": False}
    library, content = ("sentencepiece", none) if steps is None else library_of(steps)
    if library != "sentencepiece":
        raise ValueError("its preprocessing is not SentencePiece's")
    return NormalizerSpec(
        name="custom" if content["charsmap"] else "identity",
        precompiled_charsmap=base64.b64decode(content["charsmap"]),
        add_dummy_prefix=content["dummy_prefix"],
        remove_extra_whitespaces=content["remove_extra_whitespaces"],
        escape_whitespaces=True,
    )


def to_tokenizers_json(steps: str) -> dict[str, Any]:
    """The steps as in tokenizer.json; for a SentencePiece normaliser, the closest equivalent."""
    library, content = library_of(steps)
    if library == "tokenizers":
        return {place: content[place] for place in COMPONENTS}
    normalizers: list[dict[str, Any]] = []
    if content["charsmap"]:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": content["charsmap"]})
    if content["remove_extra_whitespaces"]:
        normalizers += [replace_step(Regex=r"\A +| +\z", content=""), replace_step(Regex=" {2,}", content=" ")]
    if content["dummy_prefix"]:
        normalizers.append(PREPEND)
    normalizers.append(replace_step(String=" ", content=METASPACE))
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if content["dummy_prefix"] else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*DECODERS, *strip]},
    }
