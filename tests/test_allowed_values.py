"""No allowed value of an enumerated parameter is left out of those that are run."""

import importlib
from collections import defaultdict
from itertools import chain
from typing import Literal, get_args, get_origin

from chatmill.pipeline.params_file import read_params
from chatmill.pipeline.signatures import signature_of
from chatmill.tokenizer.type_registry import load_type, type_names
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from support.allowed_values import TOKENIZERS, TRAINING
from support.paths import ROOT, SOURCE


def literals(annotation):
    """The values that an annotation enumerates, also within other types."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literals(part)


def allowed_values():
    """Every enumerated value of every parameter, by dotted key."""
    for script in SOURCE.glob("*.py"):
        for key, field in signature_of(importlib.import_module(script.stem).main).model.model_fields.items():
            yield f"{script.stem}.{key}", set(literals(field.annotation))
    yield "train_tokenizer.type", set(type_names())
    for name in type_names():
        for key, field in load_type(name).Settings.model_fields.items():
            yield f"train_tokenizer.{name}.{key}", set(literals(field.annotation))
    yield "train_tokenizer.bpe.pattern", set(PATTERNS)


def test_every_allowed_value_is_among_those_that_are_run():
    tried = defaultdict(set)
    for key, value in chain(read_params_flat(), *(values.items() for values in TOKENIZERS + TRAINING)):
        tried[key] |= set(value) if isinstance(value, list) else {value}
    left_out = {key: rest for key, allowed in allowed_values() if (rest := allowed - tried[key])}
    assert left_out == {
        "prepare.side": {"train", "validation", "test"},
        "prepare.roles": {"system", "user", "assistant", "call", "output", "ignore"},
        "prepare.first": {"user", "assistant"},
        "prepare.assistant_first": {"drop", "keep"},
        "prepare.same_role": {"join", "reject"},
        "prepare.near_duplicates": {"across", "within", "off"},
        "train_model.device": {"cpu", "cuda"},
        "train_model.processes": {"auto"},
    }


def read_params_flat():
    """The project's own values that may be enumerated ones, by dotted key."""

    def flat(prefix, section):
        for key, value in section.items():
            yield from flat(f"{prefix}{key}.", value) if isinstance(value, dict) else [(f"{prefix}{key}", value)]

    for key, value in flat("", read_params(ROOT / "params.yaml")):
        if not isinstance(value, list) or all(isinstance(item, str) for item in value):
            yield key, value
