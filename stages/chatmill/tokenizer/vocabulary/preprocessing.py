"""The steps before and after an external tokenizer's model: normalisation, splits, and what undoes them.

A vocabulary keeps them as JSON, in the words of the library that they come from:

    {"tokenizers": {"normalizer": {"type": "NFC"}, "pre_tokenizer": …, "post_processor": …, "decoder": …}}
    {"sentencepiece": {"charsmap": "…", "dummy_prefix": true, "remove_extra_whitespaces": true}}

`"scores"` beside the steps of `tokenizers` are scores that float32 does not hold exactly.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_float
from typing import Any

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec
from tokenizers import Tokenizer

METASPACE = "\u2581"
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
SUPPORTED_TYPES = {
    "normalizer": {
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend", "Replace", "Sequence"),
        *("Strip", "StripAccents"),
    },
    "pre_tokenizer": {
        *("BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split"),
        *("Whitespace", "WhitespaceSplit"),
    },
    "post_processor": {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"},
    "decoder": {"ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece"},
}
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
    harmless = ({"type": "NFC"}, mark, {"type": "Prepend", "prepend": METASPACE})
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
    metaspaces = (step for step in flat("pre_tokenizer", content["pre_tokenizer"]) if step["type"] == "Metaspace")
    prepends = {"type": "Prepend", "prepend": METASPACE} in flat("normalizer", content["normalizer"])
    return prepends or any(step.get("prepend_scheme", "always") != "never" for step in metaspaces)


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


class Preprocessor:
    """Runs the steps, if any. Raises ValueError if their library rejects them.

    `protected` are pieces that SentencePiece's normaliser does not change.
    """

    normalize: Callable[[str], str]
    split: Callable[[str], list[str]]  # splits normalised text into what the model encodes

    def __init__(self, steps: str | None, protected: Iterable[str] = ()) -> None:
        self.library, content = ("none", {}) if steps is None else library_of(steps)
        self._steps = steps
        self.normalize, self.split = str, lambda text: [text] if text else []
        try:
            if self.library == "sentencepiece":
                self.normalize = _sentencepiece(to_normalizer_spec(steps), protected)
            elif self.library == "tokenizers":
                self.normalize, self.split = _tokenizers(content)
        except Exception as error:  # tokenizers raises no narrower one
            raise ValueError(f"{self.library} rejects its preprocessing: {error}") from error

    def run(self, text: str) -> list[str]:
        """The stretches of a text that the model encodes."""
        return self.split(self.normalize(text))

    def round_score(self, score: float) -> float:
        """A sum of scores, rounded as the library does."""
        return score if self.library == "tokenizers" else float32(score)

    def scores(self, scores: Sequence[float]) -> list[float]:
        """The scores of all tokens as the library adds them."""
        if self._steps is None or self.library == "sentencepiece":
            return list(scores)
        return list(map(_as_serde_reads, exact_scores(self._steps, scores)))


def from_tokenizers_json(content: dict[str, Any], scores: Sequence[float] = ()) -> str:
    """The steps of a tokenizer.json, with exact `scores` if given. Raises ValueError for unsupported steps."""
    steps = {place: content.get(place) for place in COMPONENTS}
    for place, step in steps.items():
        for one in flat(place, step):
            if one["type"] not in SUPPORTED_TYPES[place]:
                raise ValueError(f"its {place} {one['type']!r:.40} is not supported")
    first = any(step.get("prepend_scheme") == "first" for step in flat("pre_tokenizer", steps["pre_tokenizer"]))
    if first and steps["normalizer"] is not None:
        raise ValueError("its prepend_scheme 'first' is not supported with a normalizer")
    if scores:
        steps["scores"] = list(scores)
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
        normalizers.append({"type": "Prepend", "prepend": METASPACE})
    normalizers.append(replace_step(String=" ", content=METASPACE))
    decoders = [replace_step(String=METASPACE, content=" "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if content["dummy_prefix"]:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def changed_text(steps: str) -> tuple[str, str] | None:
    """A text that the steps change, and the result; None if they change no sample."""
    run = Preprocessor(steps).run
    changed = ((text, "".join(run(text)).replace(METASPACE, " ")) for text in NORMALIZATION_SAMPLES)
    return next(((text, other) for text, other in changed if text != other), None)


def _as_serde_reads(number: float) -> float:
    """The number as `tokenizers` reads it: serde_json divides its digits by a power of ten, rounding twice.

    This decides near ties.
    """
    whole, _, fraction = repr(abs(number)).partition(".")
    if not fraction.isdigit():
        return number
    return math.copysign(float(int(whole + fraction)) / 10.0 ** len(fraction), number)


def _sentencepiece(spec: NormalizerSpec, protected: Iterable[str]) -> Callable[[str], str]:
    model = ModelProto(normalizer_spec=spec, trainer_spec=TrainerSpec(model_type=TrainerSpec.UNIGRAM))
    model.pieces.add(piece="\uffff", score=0, type=ModelProto.SentencePiece.UNKNOWN)
    model.pieces.add(piece="\ufffe", score=0)  # these two are noncharacters, which no user-defined piece is
    for piece in protected:
        model.pieces.add(piece=piece, score=0, type=ModelProto.SentencePiece.USER_DEFINED)
    normalize: Callable[[str], str] = SentencePieceProcessor(model_proto=model.SerializeToString()).normalize
    return normalize


def _tokenizers(content: dict[str, Any]) -> tuple[Callable[[str], str], Callable[[str], list[str]]]:
    tokenizer_json: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    tokenizer_json |= {"post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    tokenizer_json |= {place: content[place] for place in ("normalizer", "pre_tokenizer")}
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json))
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    def split(text: str) -> list[str]:
        stretches = [stretch for stretch, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]
        return [stretch for stretch in stretches if stretch]

    return normalizer.normalize_str if normalizer else str, split
