r"""What a page holds of a model, and its split pattern as a regular expression of JavaScript.

JavaScript's `\s` has U+FEFF and lacks U+0085, its `.` excludes four characters, it has no possessive quantifiers, and
not every browser has `(?i:…)`. What is not translated is refused.

    (?i:'s)|\s++$  ->  (?:'[sSſ])|(?=(?<p0>\p{White_Space}+))\k<p0>(?![\s\S])
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import ArrayLike, NDArray
from onnx import numpy_helper

from chatmill.app.introduction import introduce
from chatmill.checkpoints.configuration import ModelConfig, read_config
from chatmill.checkpoints.weights import Weights
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.inference.chat_template import ChatmillTemplate, ChatTemplate, layout_of
from chatmill.inference.model_loading import find_model, load_model
from chatmill.model.chat_model import CONFIG, ChatModel, model_from_weights
from chatmill.model.layers import scale_rope_frequencies
from chatmill.pipeline.manifest import read_json
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.preprocessing import flat, library_of
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

# Split patterns as regular expressions of JavaScript, for the flags `gu`.

_TOKEN = re.compile(
    r"(?P<property>\\[pP](?:\{\w+\}|[A-Z]))|(?P<code>\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4})|(?P<escape>\\.)"
    r"|(?P<group>\((?:\?(?:i:|:|<?[=!]))?)|(?P<quantifier>(?:[+*?]|\{\d+(?:,\d*)?\})[+?]?)|(?P<literal>[\s\S])"
)
_CATEGORY = re.compile(r"C[cfons]?|L[lmotuC]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?")
_SCRIPTS = {"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai"}
_CLASSES = {"s": r"\p{White_Space}", "S": r"\P{White_Space}", "d": r"\p{Nd}", "D": r"\P{Nd}"}
_CLASSES |= {"w": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"}
_FOLDED = {"s": "ſ", "k": "\u212a"}  # what also equals an ASCII letter where case is ignored


class UntranslatedPatternError(ValueError):
    """The pattern has what JavaScript's regular expressions lack."""


def to_javascript(pattern: str) -> str:
    """The expression for JavaScript. Raises UntranslatedPatternError, with the part that it lacks."""
    written: list[str] = []
    groups: list[tuple[int, bool]] = []  # where each open group begins, and the flag outside of it
    atom = possessives = 0  # where the last atom begins
    ignore_case = in_set = False
    for match in _TOKEN.finditer(pattern):
        kind, text, start = str(match.lastgroup), match[0], len(written)
        if in_set:
            written.append(_in_set(kind, text, written[-1], ignore_case))
            in_set = text != "]"
            continue
        if kind == "quantifier":
            if len(text) > 1 and text.endswith("+"):
                name, repeated = f"p{possessives}", "".join(written[atom:]) + text[:-1]
                written[atom:] = [f"(?=(?<{name}>{repeated}))\\k<{name}>"]
                possessives += 1
            else:
                written.append(text)
            continue
        if kind == "group":
            groups.append((start, ignore_case))
            ignore_case |= text == "(?i:"
            text = "(?:" if text in ("(", "(?i:") else text
        elif text == ")":
            start, ignore_case = groups.pop()
        elif text == "[":
            in_set = True
        else:
            text = _atom(kind, text, ignore_case)
        written.append(text)
        atom = start
    if in_set:
        raise UntranslatedPatternError("an open set")
    return "".join(written)


def _atom(kind: str, text: str, ignore_case: bool) -> str:
    if kind != "literal":
        return f"[{_class(kind, text)}]" if text == r"\w" else _class(kind, text)
    if text in ".$":
        return r"[^\n]" if text == "." else r"(?![\s\S])"
    if text in "^{}]":
        raise UntranslatedPatternError(text)
    letters = _cases(text, ignore_case)
    return letters if len(letters) == 1 else f"[{letters}]"


def _in_set(kind: str, text: str, before: str, ignore_case: bool) -> str:
    if text == "[" or text == "&" == before or (text == "-" and ignore_case):
        raise UntranslatedPatternError("a set inside a set, what two sets share, or a range where case is ignored")
    if kind in ("group", "quantifier"):  # in a set, these are letters
        return "".join(f"\\x{ord(letter):02x}" if letter in "()?{}" else letter for letter in text)
    return _cases(text, ignore_case) if kind == "literal" else _class(kind, text)


def _class(kind: str, text: str) -> str:
    """A property, code or escape, which mean the same in a set and outside of it."""
    letter, name = text[1], text[2:].strip("{}")
    if kind == "property" and (name in _SCRIPTS or _CATEGORY.fullmatch(name)):
        return f"\\{letter}{{{'Script=' if name in _SCRIPTS else ''}{name}}}"
    if kind == "code":
        return f"\\u{{{int(name, 16):x}}}"
    if letter in _CLASSES:
        return _CLASSES[letter]
    if letter.isalnum() and letter not in "nrtfv":
        raise UntranslatedPatternError(text)
    return text if letter.isalnum() or ord(letter) >= 128 else f"\\x{ord(letter):02x}"


def _cases(letter: str, ignore_case: bool) -> str:
    if not ignore_case or letter.lower() == letter.upper():
        return letter
    if not letter.isascii():
        raise UntranslatedPatternError(f"{letter!r} where case is ignored")
    return letter.lower() + letter.upper() + _FOLDED.get(letter.lower(), "")


# What the page has of a model: its shape, weights, tokenizer and template, as page/static/backend.js reads them.

MOST_WEIGHTS = 375_000_000  # nearly all are one character, and Chromium's longest text has 536 million
_ESCAPE = ord("\\")
_ESCAPED = (_ESCAPE, *b"\0\r<")  # the backslash itself is replaced first
OTHERS = "`chatmill chat` and `chatmill serve` run it, and `chatmill gguf` may convert it for llama.cpp"
_PUNCTUATION = r"[\p{P}\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]"


class UnsupportedPageError(ValueError):
    """A model that the page cannot run: the reason, and what runs it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a page cannot have it: {reason}: {OTHERS}")


class PageContent(NamedTuple):
    description: dict[str, Any]  # for JSON
    weights: bytes  # the vectors and scales in float32, then the matrices in int8
    fingerprint: str


def read_content(path: Path, name: str) -> PageContent:
    """Read a model. Raises UnsupportedPageError for one that the page cannot run."""
    file = find_model(path)
    folder = file if file.is_dir() else file.parent
    content = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else None
    if not isinstance(content, dict):
        raise ValueError(f"{folder}: no {CONFIG}: expected a folder of the pipeline or of Hugging Face")
    config = read_config(content)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in ChatModel(config).parameters())
    if size > MOST_WEIGHTS:
        reason = f"{size / 1e6:,.0f} million weights are more than the {MOST_WEIGHTS / 1e6:,.0f} that fit into one"
        raise UnsupportedPageError(reason)
    loaded = load_model(path, device="cpu")
    if isinstance(loaded.engine, PyTorchEngine):
        model = loaded.engine.model
    else:
        model = model_from_weights(config, _graph_weights(file), torch.device("cpu"), path)
    tensors, data = quantize(model.state_dict())
    description = {
        "name": name,
        "size": len(data),
        "shape": _shape(model.config),
        "tensors": tensors,
        "tokenizer": tokenizer_content(loaded.tokenizer),
        "template": template_content(loaded.template, loaded.tokenizer),
        "stop_ids": sorted(loaded.stop_ids),
        "tools": list(loaded.tools),
        **introduce(path, loaded, len(data)),
    }
    return PageContent(description, data, loaded.tokenizer.fingerprint)


def _graph_weights(file: Path) -> Weights:
    named = {one.name: numpy_helper.to_array(one) for one in onnx.load(file).graph.initializer if "." in one.name}
    weights = {name: array for name, array in named.items() if name.endswith((".weight", ".bias"))}
    if "model.norm.weight" not in weights:
        raise ValueError(f"{file}: not a float32 graph of `export_onnx`: name the folder of its weights")
    matrices = ("_proj.weight", "lm_head.weight")  # are transposed in graphs
    return {
        name: torch.from_numpy(np.array(array.T if name.endswith(matrices) else array, np.float32))
        for name, array in weights.items()
    }


def quantize(weights: Weights) -> tuple[list[dict[str, Any]], bytes]:
    """The names and sizes of all tensors, and their data: each row of a matrix is int8 with a float32 scale."""
    tensors, floats, matrices = [], [], []
    for name, weight in weights.items():
        values: NDArray[np.float32] = weight.to(torch.float32).numpy()
        rows, columns = values.shape if values.ndim == 2 else (0, len(values))
        tensors.append({"name": name, "rows": rows, "columns": columns})
        if not rows:
            floats.append(values.astype("<f4").tobytes())
            continue
        scales, rounded = quantize_rows(values)
        floats.append(scales.astype("<f4").tobytes())
        matrices.append(rounded.tobytes())
    return tensors, b"".join([*floats, *matrices])


def quantize_rows(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """(N, C) -> (N,) scales and (N, C) int8, whose product is nearest to the values."""
    scales = (np.abs(values).max(axis=1) / np.float32(127)).astype(np.float32)
    divisors = np.where(scales == 0, np.float32(1), scales)[:, None]
    return scales, np.rint(values / divisors).astype(np.int8)


def weights_text(data: bytes) -> str:
    """The data as characters: the int8 values next to 0 are ASCII, so that the page has 1.1 bytes for most weights.

    Four characters would be lost or read as markup in a page: they stand as a backslash and another one.
    """
    nearest = sorted(range(256), key=lambda byte: 2 * byte if byte < 128 else 511 - 2 * byte)
    codes = [code for code in range(256) if code not in _ESCAPED] + [*_ESCAPED]
    table = bytes(code for _, code in sorted(zip(nearest, codes, strict=True)))
    written = data.translate(table)
    for code in _ESCAPED:
        written = written.replace(bytes([code]), bytes([_ESCAPE, code ^ 64]))
    return written.decode("latin-1")


def _shape(config: ModelConfig) -> dict[str, Any]:
    frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    if config.variant.rope_scaling:
        frequencies = scale_rope_frequencies(frequencies, config.variant.rope_scaling)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    more = ("num_key_value_heads", "head_dim", "rms_norm_eps")
    return {name: getattr(config, name) for name in (*names, *more)} | {
        "context": config.max_position_embeddings,
        "sliding_window": config.variant.sliding_window,
        "frequencies": frequencies.tolist(),
    }


def tokenizer_content(tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The vocabulary for tokenizer.js. Raises UnsupportedPageError where JavaScript lacks its way to split text."""
    vocabulary = tokenizer.vocabulary
    scored = vocabulary.algorithm == "viterbi"
    marked, stepped = vocabulary.spelling == "marked", vocabulary.steps is not None
    if marked and stepped:
        raise UnsupportedPageError("its tokenizer marks spaces by U+2581, and splits text in several steps")
    try:
        pattern = None if vocabulary.pattern is None else to_javascript(vocabulary.pattern)
        splits = [*map(to_javascript, _splits(vocabulary))]
    except UntranslatedPatternError as error:
        raise UnsupportedPageError(f"its tokenizer splits text by what JavaScript lacks, {error}") from error
    return {
        "algorithm": vocabulary.algorithm,
        "pattern": pattern,
        "splits": splits,
        "marked": marked,
        "plain": vocabulary.spelling == "plain",
        "exact": stepped,
        "tokens": base64.b64encode(b"".join(vocabulary.tokens)).decode(),
        "lengths": _packed(list(map(len, vocabulary.tokens)), "<u2"),
        "kinds": _packed(vocabulary.kinds, "u1"),
        "scores": _packed(vocabulary.scores if scored else [], "<f8"),
        "merges": _packed(vocabulary.merges, "<u4"),
        "added": [
            {"content": one.content, "id": one.id, "single_word": one.single_word, "late": stepped and one.normalized}
            for one in vocabulary.added_tokens
        ],
        "special": vocabulary.special,
    }


def _packed(numbers: ArrayLike, dtype: str) -> str:
    return base64.b64encode(np.array(numbers, dtype).tobytes()).decode()


def _splits(vocabulary: Vocabulary) -> Iterator[str]:
    """An expression, not yet JavaScript's, for each splitting step: matches and texts between become pieces."""
    if vocabulary.steps is None:
        return
    _, content = library_of(vocabulary.steps)
    for step in flat("pre_tokenizer", content["pre_tokenizer"]):
        match step:
            case {"type": "Digits", "individual_digits": individual}:
                yield r"\p{N}" if individual else r"\p{N}+"
            case {"type": "Punctuation", "behavior": "Isolated" | "isolated"}:
                yield _PUNCTUATION
            case {"type": "Split", "behavior": "Isolated" | "isolated", "pattern": {"Regex": expression}}:
                yield expression
            case {"type": "Split", "behavior": "Isolated" | "isolated", "pattern": {"String": text}}:
                yield "".join(f"\\x{{{ord(letter):x}}}" for letter in text)
            case _:
                raise UnsupportedPageError(f"its tokenizer splits text by {json.dumps(step)[:80]}")


def template_content(template: ChatTemplate, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The template for template.js; without a layout it is one of chatmill's own."""
    layout = None if isinstance(template, ChatmillTemplate) else layout_of(template)
    if layout is None and not isinstance(template, ChatmillTemplate):
        raise UnsupportedPageError("its chat template writes more than texts around messages")
    flags = tokenizer.vocabulary.flags
    return {
        "name": template.name,
        "escapes": template.escapes,
        "answer_prefix": template.answer_prefix,
        "end_token": template.end_token,
        "stop": list(template.stop),
        "layout": layout and layout._asdict(),
        "leading_space": tokenizer.leading_space,
        **{side: [name for name, flag in flags.items() if flag.get(side)] for side in ("lstrip", "rstrip")},
    }
