"""Which edit reruns what, on the project's own dvc.yaml, scripts and library."""

import shutil
import subprocess
import sys
import time
from contextlib import chdir
from copy import deepcopy
from functools import cache

import pytest
import yaml
from dvc.repo import Repo
from dvc.utils import strictyaml
from dvc.utils.serialize import _yaml

from chatmill.training.validation import HEADER
from support.project import TINY

PREPARE = [f"prepare@{source}" for source in ("talk", "persona", "skills", "smalltalk", "letters", "visits")]
REPORT = ["report"]
AFTER_EXPORT = ["export_onnx", "evaluate", "benchmark", *REPORT]
AFTER_MODEL = ["train_soft_tokenizer", "export_gguf", *AFTER_EXPORT]
AFTER_TEACHER = ["train_model", *AFTER_MODEL]
AFTER_ENCODE = ["score_teacher", *AFTER_TEACHER]
AFTER_TOKENIZER = ["export_tokenizer", "encode", *AFTER_ENCODE]
AFTER_MIX = ["train_tokenizer", *AFTER_TOKENIZER]
PRETRAINED = "data/raw/external/pretrained"
TYPES = "stages/chatmill/tokenizer/types"

PARAMETER_ROWS = [
    ("prepare.skills.seed", 7, ["prepare@skills", "mix", *AFTER_MIX]),
    ("prepare.visits.max_reject_rate", 0.5, ["prepare@visits", "mix", *AFTER_MIX]),
    ("prepare.more", {"path": "data/raw/visits.jsonl", "format": "messages"}, ["prepare@more", "mix", *AFTER_MIX]),
    ("mix.near_duplicates", False, ["mix", *AFTER_MIX]),
    ("train_tokenizer.type", "byte", AFTER_MIX),
    ("train_tokenizer.vocab_size", 640, AFTER_MIX),
    ("train_tokenizer.max_bytes", 20_000, AFTER_MIX),
    ("train_tokenizer.bpe.pattern", "gpt2", AFTER_MIX),
    ("train_tokenizer.bpe.buffer_size", 100, AFTER_MIX),
    ("train_tokenizer.wordpiece.pattern", "gpt2", []),
    ("train_tokenizer.sentencepiece.algorithm", "bpe", []),
    ("export_tokenizer.formats", ["binary"], ["export_tokenizer", "benchmark", *REPORT]),
    ("encode.template", "markers", ["encode", *AFTER_ENCODE]),
    ("train_model.depth", 2, AFTER_TEACHER),
    ("train_model.steps", 5, AFTER_TEACHER),
    ("train_model.keep", "best", AFTER_TEACHER),
    ("train_model.embedding", "bytes", AFTER_TEACHER),
    ("train_model.source_weights", {"talk": 0.5, "skills": "30%"}, AFTER_TEACHER),
    ("train_model.teacher_weight", 0.5, AFTER_TEACHER),
    ("train_model.start", "random", AFTER_TEACHER),
    ("threads", 1, AFTER_ENCODE),
    ("score_teacher.ngram_order", 3, AFTER_ENCODE),
    ("score_teacher.teacher", "data/raw/external/teacher/earlier", AFTER_ENCODE),
    ("train_soft_tokenizer.steps", 5, ["train_soft_tokenizer", *REPORT]),
    ("export_onnx.quantize", ["int8"], AFTER_EXPORT),
    ("export_gguf.quantize", ["f16"], ["export_gguf"]),
    ("evaluate.max_tokens", 5, ["evaluate", *REPORT]),
    ("evaluate.conversations", 5, ["evaluate", *REPORT]),
    ("evaluate.talk_prompts", 5, ["evaluate", *REPORT]),
    ("benchmark.repeats", 2, ["benchmark", *REPORT]),
    ("report.sample", "Another one.", REPORT),
]

CODE_ROWS = [
    ("stages/prepare.py", [*PREPARE, "mix", *AFTER_MIX]),
    ("stages/chatmill/datasets/formats/skills.py", [*PREPARE, "mix", *AFTER_MIX]),
    ("stages/mix.py", ["mix", *AFTER_MIX]),
    ("stages/train_tokenizer.py", AFTER_MIX),
    (f"{TYPES}/bpe.py", AFTER_MIX),
    ("stages/chatmill/tokenizer/vocabulary/patterns.py", AFTER_MIX),
    ("stages/chatmill/tokenizer/exporting/exports.py", ["export_tokenizer", "export_gguf", "benchmark", *REPORT]),
    (f"{TYPES}/wordpiece.py", []),
    (f"{TYPES}/byte.py", []),
    ("stages/export_tokenizer.py", ["export_tokenizer", "benchmark", *REPORT]),
    ("stages/encode.py", ["encode", *AFTER_ENCODE]),
    ("stages/score_teacher.py", AFTER_ENCODE),
    ("stages/chatmill/teacher/ngram_teacher.py", AFTER_ENCODE),
    ("stages/chatmill/teacher/model_teacher.py", AFTER_ENCODE),
    ("stages/chatmill/training/new_model.py", AFTER_TEACHER),
    ("stages/train_model.py", AFTER_TEACHER),
    ("stages/chatmill/training/packing.py", AFTER_TEACHER),
    ("stages/train_soft_tokenizer.py", ["train_soft_tokenizer", *REPORT]),
    ("stages/chatmill/soft_tokenizer/encoder_training.py", ["train_soft_tokenizer", *REPORT]),
    ("stages/export_onnx.py", AFTER_EXPORT),
    ("stages/chatmill/onnx_export/graphs.py", AFTER_EXPORT),
    ("stages/export_gguf.py", ["export_gguf"]),
    ("stages/chatmill/gguf_export/fields.py", ["export_gguf"]),
    ("stages/evaluate.py", ["evaluate", *REPORT]),
    ("stages/chatmill/evaluation/answering.py", ["evaluate", *REPORT]),
    ("stages/chatmill/evaluation/ngram.py", ["evaluate", *REPORT]),
    ("stages/chatmill/talk/persona.py", [*PREPARE, "mix", *AFTER_MIX]),
    ("stages/chatmill/evaluation/corpus.py", ["evaluate", "train_soft_tokenizer", *REPORT]),
    ("stages/benchmark.py", ["benchmark", *REPORT]),
    ("stages/report.py", REPORT),
    ("stages/chatmill/data_card.py", REPORT),
    ("stages/chatmill/app/cli.py", []),
    ("stages/chatmill/pipeline/progress.py", []),
    ("stages/chatmill/pipeline/stage.py", []),
    ("stages/chatmill/pipeline/params_file.py", []),
    ("stages/chatmill/run_display.py", []),
    ("stages/chatmill/training/README.md", []),
]

INPUT_ROWS = [  # a file, and the stages for which it has changed: the one that writes it and those that read it
    ("data/raw/letters.txt", ["prepare@letters"]),
    ("data/raw/skills.yaml", ["prepare@skills"]),
    ("data/raw/prompts/free.txt", ["evaluate"]),
    ("data/raw/talk.yaml", ["prepare@persona", "evaluate"]),
    ("data/raw/external/initial/.gitkeep", ["train_model"]),
    ("data/raw/external/pretrained/.gitkeep", ["train_tokenizer"]),
    ("data/raw/external/teacher/.gitkeep", ["score_teacher"]),
    ("data/raw/external/other_tokenizer/.gitkeep", ["train_soft_tokenizer"]),
    ("data/raw/external/compare_tokenizers/.gitkeep", ["evaluate"]),
    ("data/prepared/visits.jsonl", ["prepare@visits", "mix"]),
    ("data/prepared/visits.manifest.json", ["prepare@visits", "mix"]),
    ("data/chat/manifest.json", ["mix"]),
    ("data/chat/train.jsonl", ["mix", "train_tokenizer", "encode", "train_soft_tokenizer", "evaluate", "report"]),
    ("data/chat/validation.jsonl", ["mix", "encode"]),
    ("data/chat/test.jsonl", ["mix", "evaluate", "benchmark", "train_soft_tokenizer"]),
    (
        "data/tokenizer/tokenizer.json",
        [
            "train_tokenizer",
            "export_tokenizer",
            "encode",
            "score_teacher",
            "train_model",
            "train_soft_tokenizer",
            "report",
        ],
    ),
    ("data/export/tokenizer/tokenizer.bin", ["export_tokenizer", "benchmark"]),
    ("data/tokens/train_ids.npy", ["encode", "score_teacher", "train_model", "train_soft_tokenizer", "evaluate"]),
    ("data/teacher/formats.json", ["score_teacher", "train_model"]),
    (
        "data/model/model.safetensors",
        ["train_model", "export_onnx", "export_gguf", "evaluate", "benchmark", "train_soft_tokenizer"],
    ),
    ("data/soft_tokenizer/model.safetensors", ["train_soft_tokenizer"]),
    ("data/export/onnx/model.onnx", ["export_onnx", "evaluate", "benchmark"]),
    ("data/export/gguf/model-f32.gguf", ["export_gguf"]),
    ("data/metrics/train.tsv", ["train_model", "report"]),
    ("data/metrics/mix.json", ["mix", "report"]),
    ("data/metrics/evaluate.json", ["evaluate", "report"]),
    ("data/metrics/benchmark.json", ["benchmark", "report"]),
    ("data/metrics/soft_tokenizer.json", ["train_soft_tokenizer", "report"]),
    ("data/metrics/summary.json", ["report"]),
    ("data/samples.jsonl", ["evaluate", "report"]),
]


def planned(project, **options):
    """The stages that `dvc repro` would run."""
    with chdir(project.folder), Repo() as repo:
        return [stage.addressing for stage in repo.reproduce(dry=True, **options)]


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Parse each YAML text once: DVC spends most of the time of a plan on parsing the same three files again."""
    parse = cache(_yaml.parse_yaml)
    with pytest.MonkeyPatch.context() as patch:
        for module in (_yaml, strictyaml):
            patch.setattr(module, "parse_yaml", lambda *arguments, **options: deepcopy(parse(*arguments, **options)))
        yield


def test_the_first_run_runs_every_stage_and_the_second_none(project):
    assert sorted(project.first_run) == sorted([*PREPARE, "mix", *AFTER_MIX])
    assert project.repro() == []


def test_every_file_of_a_stage_has_the_mode_that_the_umask_gives(project, tmp_path):
    (tmp_path / "any").touch()
    data = project.folder / "data"
    files = [file for file in data.rglob("*") if file.is_file() and not file.is_relative_to(data / "raw")]
    assert len(files) > 50 and {file.stat().st_mode for file in files} == {(tmp_path / "any").stat().st_mode}


@pytest.mark.parametrize(("key", "value", "stages"), PARAMETER_ROWS)
def test_an_edited_parameter_reruns(project, edited, key, value, stages):
    edited("params.yaml", lambda content: content)
    project.edit({key: value})
    assert sorted(planned(project, force_downstream=True)) == sorted(stages)


def test_another_tokenizer_to_compare_reruns_what_reads_it_alone(project, edited):
    edited("params.yaml", lambda content: content)
    place = project.folder / "data/raw/external/compare_tokenizers/another.json"
    shutil.copy(project.folder / "data/tokenizer/tokenizer.json", place)
    project.edit({"evaluate.compare_tokenizers": [str(place.relative_to(project.folder))]})
    assert sorted(planned(project, force_downstream=True)) == sorted(["evaluate", *REPORT])
    place.unlink()


@pytest.mark.parametrize(("file", "stages"), CODE_ROWS)
def test_edited_code_reruns(project, edited, file, stages):
    edited(file, lambda content: content + b"# a comment\n")
    assert sorted(planned(project, force_downstream=True)) == sorted(stages)


@pytest.mark.parametrize(("file", "stages"), INPUT_ROWS)
def test_an_edited_file_is_seen_by(project, edited, file, stages):
    edited(file, lambda content: content + b"\n")
    assert sorted(planned(project)) == sorted(stages)


@pytest.mark.parametrize(
    ("targets", "stages"),
    [
        (["export_tokenizer", "encode"], ["train_tokenizer", "export_tokenizer", "encode"]),
        pytest.param([], AFTER_MIX, marks=pytest.mark.slow),
    ],
)
def test_the_tokenizers_type_there_and_back(project, edited, targets, stages):
    edited("params.yaml", lambda content: content)
    before = (project.folder / "dvc.lock").read_text()
    project.edit({"train_tokenizer.type": "byte"})
    assert sorted(project.repro(*targets)) == sorted(stages)
    project.edit({"train_tokenizer.type": "bpe"})
    assert project.repro() == []
    assert (project.folder / "dvc.lock").read_text() == before


def test_a_comment_runs_one_stage_and_equal_outputs_cut_off_the_rest(project, edited):
    edited("stages/encode.py", lambda content: content + b"# a comment\n")
    assert project.repro() == ["encode"]


@pytest.mark.slow
def test_a_killed_run_leaves_no_curve_that_a_later_stage_takes_for_a_result(project, edited):
    project.repro()
    edited("params.yaml", lambda content: content)
    project.edit({"train_model.steps": 3000})
    curve = project.folder / "data/metrics/train.tsv"
    whole = curve.read_bytes()
    header = whole.splitlines(keepends=True)[0]
    assert header.startswith(HEADER.encode().rstrip())
    process = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "train_model"], cwd=project.folder)
    longer = len(header) + 100
    while (
        not (curve.exists() and curve.stat().st_nlink == 2 and curve.stat().st_size > longer) and process.poll() is None
    ):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert curve.read_bytes().startswith(header + b"30\t")
    with pytest.raises(AssertionError, match="failed to reproduce 'report'"):
        project.repro("--single-item", "report")
    assert not curve.exists()
    project.edit({"train_model.steps": TINY["train_model.steps"]})
    assert project.repro() == []
    assert curve.read_bytes() == whole


@pytest.mark.slow
def test_a_forced_run_changes_only_what_holds_timings(project):
    file = project.folder / "dvc.lock"
    project.repro()
    before = yaml.safe_load(file.read_text())["stages"]
    project.repro("-f")
    after = yaml.safe_load(file.read_text())["stages"]
    changed = {
        entry["path"]
        for name, stage in before.items()
        for kind in ("deps", "outs")
        for entry, other in zip(stage.get(kind, []), after[name].get(kind, []), strict=True)
        if entry != other
    }
    assert changed <= {"data/metrics/benchmark.json", "data/metrics/summary.json", "data/report"}
