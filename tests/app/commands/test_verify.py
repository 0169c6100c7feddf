import shutil
from pathlib import Path
from random import Random

import pytest

from chatmill.app.cli import main
from support.corruption import damage
from support.small_project import in_cache

TEXT = b"some text\n" * 20
DAMAGED = "is not the content that its name says (data/copy.txt, data/fold/a.txt)"
REPAIR = "run `chatmill repair`, then `dvc repro`"


@pytest.fixture
def verify(capsys):
    def run(*arguments):
        code = main(["verify", *arguments])
        lines = capsys.readouterr().out.splitlines()
        assert code == bool(lines)
        return lines

    return run


def test_a_sound_project_is_in_order_from_any_folder_in_it(project, verify, monkeypatch):
    assert verify() == []
    monkeypatch.chdir(project / "data/fold")
    assert verify() == []


def test_damage_that_dvc_does_not_see_is_named(project, verify):
    damage(project / "data/fold/a.txt", "flip", Random(1))
    damage(project / "data/fold/b.txt", "delete", Random(1))
    damage(in_cache(project, TEXT), "truncate", Random(1))
    assert verify() == [
        f"{in_cache(project, TEXT[:34]).relative_to(project)}: {DAMAGED}: {REPAIR}",
        f"data/fold/a.txt: is not what dvc.lock says fold wrote: {REPAIR}",
        "data/fold/b.txt: is missing: run `dvc checkout` or `dvc repro`",
    ]


def test_outputs_that_are_not_checked_out_are_missing(project, verify):
    shutil.rmtree(project / "data")
    assert verify() == [
        f"data/{name}: is missing: not checked out: {remedy}"
        for name, remedy in (
            ("copy.txt", "run `dvc checkout`"),
            ("fold", "run `dvc checkout`"),
            ("sum.json", "run `dvc repro`"),
        )
    ]


def test_remotes_on_disk_are_checked_and_others_named(project, verify, capsys):
    remote = project.with_name("remote")
    shutil.copytree(project / ".dvc/cache/files", remote / "files")
    (project / ".dvc/config").write_text(
        f"['remote \"near\"']\n    url = {remote}\n['remote \"far\"']\n    url = s3://bucket/x\n"
    )
    assert verify("--remote", "near") == []
    file = in_cache(project, TEXT)
    copy = remote / file.relative_to(project / ".dvc/cache")
    copy.chmod(0o644)
    copy.write_bytes(b"other")
    assert main(["verify"]) == 1
    shown = capsys.readouterr()
    remedy = "run `chatmill repair --remote near`, then `dvc push --remote near`"
    listing = next(remote.glob("files/md5/*/*.dir"))
    assert shown.out.splitlines() == [
        f"{file}: {problem}: {remedy}"
        for file, problem in sorted({copy: DAMAGED, listing: "lists files that are damaged or missing there"}.items())
    ]
    assert "remote far (s3://bucket/x): not checked: no folder of this machine" in shown.err
    for name, message in {"none": "no such remote: expected one of near", "far": "s3://bucket/x is no folder"}.items():
        assert main(["verify", "--remote", name]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "expected a project, a folder with .dvc and dvc.yaml"),
        (["repair"], "expected a project, a folder with .dvc and dvc.yaml"),
        (["show", "--source", "mill"], "params.yaml not found in"),
        (["serve"], "no data/export/onnx or data/model here: name a model"),
        (["page", "-o", "x"], "no data/export/onnx or data/model here: name a model"),
        (["pack", "x"], "data/model: no such folder: run `dvc repro` in the folder of a project first"),
    ],
)
def test_outside_a_project_it_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "repair"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no stages: correct it, or restore it by git"),
        ("- 1", "is not what DVC reads (expected a dictionary): correct it"),
        ("stages: {copy: 1}", "is not what DVC reads ("),
        ("stages:\n\tcopy: 1", "is not YAML"),
    ],
)
def test_a_pipeline_that_cannot_be_read_is_one_line(project, capsys, command, content, message):
    Path("dvc.yaml").write_text(content)
    assert main([command]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"chatmill: {project}/dvc.yaml: {message}") and error.count("\n") == 1
