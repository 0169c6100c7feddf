"""Every allowed value of the enumerated parameters is run by a stage; none is left out."""

import importlib
import shutil
from collections import defaultdict
from itertools import chain
from typing import Literal, get_args, get_origin

import pytest

from chatmill.pipeline.params_file import read_params
from chatmill.pipeline.signatures import signature_of
from chatmill.tokenizer.type_registry import load_type, type_names
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from support.external_tokenizers import llama_like, ranks_like
from support.paths import ROOT, SOURCE

PRETRAINED = "data/raw/external/pretrained"
TEACHER = "data/raw/external/teacher/earlier"
TOKENIZERS = [  # run up to `encode`, and with all their exports
    {"train_tokenizer.bpe.pattern": "llama3", "train_tokenizer.bpe.trainer": "tokenizers"},
    {"train_tokenizer.bpe.pattern": "cl100k"},
    {"train_tokenizer.bpe.pattern": "nanochat"},
    {"train_tokenizer.bpe.pattern": "o200k"},
    {"train_tokenizer.type": "whitespace", "mix.near_duplicates": False},
    {"train_tokenizer.type": "char", "export_tokenizer.formats": ["huggingface"]},
    {"train_tokenizer.type": "sentencepiece", "train_tokenizer.sentencepiece.algorithm": "bpe"},
    {"train_tokenizer.type": "pretrained"},
    {"train_tokenizer.type": "pretrained", "train_tokenizer.pretrained.path": f"{PRETRAINED}/t.model"},
    {"train_tokenizer.type": "pretrained", "train_tokenizer.pretrained.path": f"{PRETRAINED}/t.tiktoken"},
]
TRAINING = [  # run through the whole pipeline
    {"train_tokenizer.type": "byte", "train_model.keep": "best"},
    {"train_tokenizer.type": "wordpiece", "train_model.precision": "float32"}
    | {"train_model.steps": None, "train_model.epochs": 0.1},
    {"train_tokenizer.type": "sentencepiece", "train_tokenizer.sentencepiece.algorithm": "unigram"}
    | {"score_teacher.teacher": TEACHER, "score_teacher.ngram_order": 3, "train_model.compile": True}
    | {"train_model.precision": "bfloat16", "export_onnx.quantize": ["int8", "int8_dynamic", "int4"]},
    {"train_tokenizer.bpe.pattern": "gpt2", "encode.template": "markers", "export_gguf.quantize": ["f16", "q4_0"]}
    | {"train_model.embedding": "bytes", "train_model.tie_embeddings": False, "train_model.start": "random"}
    | {"train_soft_tokenizer.tune": 2, "train_soft_tokenizer.noise": True},
]


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


def set_values(copy, project, values):
    """Give a copy the parameters of the project but these, and the files that they name."""
    shutil.copy(project.folder / "params.yaml", copy.folder / "params.yaml")
    if values.get("train_tokenizer.type") == "pretrained":
        raw = copy.folder / PRETRAINED
        shutil.copy(project.folder / "data/tokenizer/tokenizer.json", raw / "tokenizer.json")
        llama_like(raw)  # with a space before every text, and control tokens before those of text
        ranks_like(raw)  # with gaps between control tokens
    copy.edit(values)


def as_id(values):
    return "-".join(map(str, values.values()))


@pytest.fixture(scope="module")
def teaching_project(project, tmp_path_factory):
    """A copy of the finished project whose model is a teacher as well."""
    copy = project.copy(tmp_path_factory.mktemp("teaching") / "project")
    shutil.copytree(copy.folder / "data/model", copy.folder / TEACHER)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("values", TOKENIZERS, ids=as_id)
def test_every_tokenizer_encodes_and_is_exported(project, teaching_project, values):
    set_values(teaching_project, project, values)
    assert "train_tokenizer" in teaching_project.repro("export_tokenizer", "encode")


@pytest.mark.slow
@pytest.mark.parametrize("values", TRAINING, ids=as_id)
def test_every_way_of_training_completes(project, teaching_project, values):
    set_values(teaching_project, project, values)
    assert "report" in teaching_project.repro()
