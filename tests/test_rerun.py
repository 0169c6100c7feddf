"""Which edit reruns what, on the project's own dvc.yaml, scripts and library."""

import importlib
import random
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from chatmill.pipeline.params_file import read_params
from chatmill.pipeline.signatures import signature_of
from chatmill.training.training_loop import HEADER
from support.paths import ROOT
from support.project import PLUMBING, TINY, copy_project
from support.texts import FRACTION

PREPARE = [f"prepare@{source}" for source in ("mill", "skills", "letters", "visits")]
REPORT = ["report"]
AFTER_EXPORT = ["export_onnx", "evaluate", "benchmark", *REPORT]
AFTER_MODEL = ["train_soft_tokenizer", "export_gguf", *AFTER_EXPORT]
AFTER_TEACHER = ["train_model", *AFTER_MODEL]
AFTER_ENCODE = ["score_teacher", *AFTER_TEACHER]
AFTER_TOKENIZER = ["export_tokenizer", "encode", *AFTER_ENCODE]
AFTER_MIX = ["train_tokenizer", *AFTER_TOKENIZER]
PRETRAINED = "data/raw/external/pretrained"
TYPES = "stages/chatmill/tokenizer/types"
OTHER_TYPES = ("whitespace", "char", "byte", "wordpiece", "sentencepiece", "pretrained")

PLANNED_PARAMETERS = [
    ("prepare.more", {"path": "data/raw/visits.jsonl", "format": "messages"}, ["prepare@more", "mix", *AFTER_MIX]),
    ("train_tokenizer.type", "byte", AFTER_MIX),
    ("score_teacher.teacher", "data/raw/external/teacher/earlier", AFTER_ENCODE),
    ("export_onnx.quantize", ["int8"], AFTER_EXPORT),
    ("export_gguf.quantize", ["f16"], ["export_gguf"]),
    ("benchmark.repeats", 2, ["benchmark", *REPORT]),
]


def planned(project, **options):
    """The stages that `dvc repro` would run."""
    with chdir(project.folder), Repo() as repo:
        return [stage.name for stage in repo.reproduce(dry=True, **options)]


def _overlaps(name, part):
    """Whether they are equal or one holds the other, of two parameters or two paths."""
    return name == part or any(
        one.startswith((f"{other}.", f"{other}/")) for one, other in ((name, part), (part, name))
    )


@pytest.mark.slow
def test_the_first_run_runs_every_stage_and_the_second_none(project):
    assert sorted(project.first_run) == sorted([*PREPARE, "mix", *AFTER_MIX])
    assert project.repro() == []


@pytest.mark.slow
def test_every_file_of_a_stage_has_the_mode_that_the_umask_gives(project, tmp_path):
    (tmp_path / "any").touch()
    data = project.folder / "data"
    files = [file for file in data.rglob("*") if file.is_file() and not file.is_relative_to(data / "raw")]
    assert len(files) > 50 and {file.stat().st_mode for file in files} == {(tmp_path / "any").stat().st_mode}


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value", "expected"), PLANNED_PARAMETERS)
def test_dvc_plans_to_rerun(project, edited, key, value, expected):
    edited("params.yaml", lambda content: content)
    project.edit({key: value})
    assert sorted(planned(project, force_downstream=True)) == sorted(expected)


@pytest.mark.slow
def test_the_tokenizers_type_there_and_back(project, edited):
    edited("params.yaml", lambda content: content)
    before = (project.folder / "dvc.lock").read_text()
    project.edit({"train_tokenizer.type": "byte"})
    rerun = ["train_tokenizer", "export_tokenizer", "encode"]
    assert sorted(project.repro("export_tokenizer", "encode")) == sorted(rerun)
    project.edit({"train_tokenizer.type": "bpe"})
    assert project.repro() == []
    assert (project.folder / "dvc.lock").read_text() == before


@pytest.mark.slow
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


RECORD = """
import atexit, builtins, io, os, sys
def record(*paths):
    with original(os.environ["OPENED"], "a") as log:
        log.writelines(f"{os.environ['DVC_STAGE']} {os.path.abspath(path)}\\n" for path in paths)
def opening(file, *arguments, **options):
    if not isinstance(file, int):
        record(file)
    return original(file, *arguments, **options)
original = io.open
if "DVC_STAGE" in os.environ:
    builtins.open = io.open = opening
    atexit.register(lambda: record(*(m.__file__ for m in [*sys.modules.values()] if getattr(m, "__file__", None))))
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A project after its run, and by stage which of its files Python opened, modules included."""
    project, found = copy_project(tmp_path_factory.mktemp("opened"), git=False), {}
    hook = tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(RECORD)
    project.dvc("repro", PYTHONPATH=str(hook), OPENED=str(hook / "log"))
    lock = yaml.safe_load((project.folder / "dvc.lock").read_text())["stages"]
    for line in sorted({*(hook / "log").read_text().splitlines()}):
        stage, path = line.split(" ", 1)
        name = path.removeprefix(f"{project.folder}/")
        is_own = any(_overlaps(name, out["path"]) for out in lock[stage]["outs"])
        if name != path and not is_own and ".cache/" not in name and Path(path).is_file():
            found.setdefault(stage, set()).add(name)
    return project, found


def changed_dependencies(project):
    """The stages that DVC says a file or parameter has changed for."""
    with chdir(project.folder), Repo() as repo:
        status = repo.status()
    return {name for name, changes in status.items() if any("changed deps" in one for one in changes)}


def can_change_an_output(name):
    """Not plumbing, an empty `__init__.py`, or a manifest, by which a stage refuses files that were edited."""
    return (
        name.removeprefix("stages/") not in PLUMBING
        and not name.endswith("manifest.json")
        and (Path(name).name != "__init__.py" or (ROOT / name).read_text())
        and name not in ("params.yaml", "stages/params.schema.json")
    )


@pytest.mark.slow
def test_an_edit_of_any_file_is_seen_by_every_stage_that_opens_it(opened, record_property):
    project, by_stage = opened
    code = {str(file.relative_to(project.folder)) for file in (project.folder / "stages").rglob("*.py")}
    names = sorted(filter(can_change_an_output, code.union(*by_stage.values())))
    chosen = random.Random(1).sample(names, max(1, int(len(names) * min(FRACTION, 1))))
    missed, in_vain = {}, {}
    for name in chosen:
        file = project.folder / name
        content = file.read_bytes()
        file.unlink()  # it may be a link into DVC's cache
        file.write_bytes(content + b"# edited")
        reruns, readers = changed_dependencies(project), {stage for stage, paths in by_stage.items() if name in paths}
        file.write_bytes(content)
        missed |= {name: readers - reruns} if readers - reruns else {}
        in_vain |= {name: reruns - readers} if reruns - readers else {}
    record_property("cases", len(chosen))
    record_property("reruns in vain", sum(map(len, in_vain.values())))
    record_property("files times stages", len(chosen) * len(by_stage))
    assert missed == {}


def leaves(section, path=()):
    """The dotted keys of all values that are no section."""
    for key, value in section.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) and value else [".".join((*path, key))]


def takers(project, key):
    """The stages whose `main` takes a parameter; of the tokenizer's types only the chosen one is taken."""
    section, *rest = key.split(".")
    for name in project.first_run:
        script = name.partition("@")[0]
        main = importlib.import_module(script).main
        signature = signature_of(main)
        own = name == f"prepare@{rest[0]}" if section == "prepare" else script == section
        chosen = section != "train_tokenizer" or rest[0] not in OTHER_TYPES
        other = section in signature.other_sections or (rest and signature.other_keys.get(rest[0]) == section)
        if other or (own and chosen) or (not rest and key in signature.model.model_fields):
            yield name


@pytest.mark.slow
def test_an_edit_of_any_parameter_is_seen_by_the_stages_that_take_it(finished_project, edited, record_property):
    edited("params.yaml", lambda content: content)
    file = finished_project.folder / "params.yaml"
    before = file.read_text()
    keys = [key for key in leaves(read_params(file)) if key != "train_tokenizer.type"]  # which names a file of code
    keys = random.Random(1).sample(keys, max(1, int(len(keys) * min(FRACTION, 1))))
    for key in keys:
        finished_project.edit({key: "edited"})
        assert changed_dependencies(finished_project) == {*takers(finished_project, key)}, key
        file.write_text(before)
    record_property("cases", len(keys))
