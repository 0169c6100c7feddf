import subprocess

import pytest

from chatmill.report.inputs import SUMMARY, Change, read_origin
from chatmill.report.page import page


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/mix.py").write_text("pass\n")
    (tmp_path / "params.yaml").write_text("train_model: {rate: 1e-3, steps: 9}\n")
    (tmp_path / SUMMARY).parent.mkdir(parents=True)
    (tmp_path / SUMMARY).write_text('{"skills": 0.5}')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Small <steps>")
    return tmp_path


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    run = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_a_run_of_the_commit_itself_changes_nothing(project):
    origin = read_origin(project)
    assert origin.commit == git(project, "rev-parse", "HEAD") and origin.subject == "Small <steps>"
    assert origin.experiment is None and origin.changes == [] and not origin.code_differs
    assert origin.name == origin.commit[:7]
    (project / "stages/README.md").write_text("Words.")
    git(project, "add", ".")
    assert not read_origin(project).code_differs


def test_an_experiment_has_its_name_and_what_it_changes(project, monkeypatch):
    first = git(project, "rev-parse", "HEAD")
    (project / "params.yaml").write_text("train_model: {rate: 0.001, steps: 12, seed: 1}\n")
    (project / "stages/mix.py").write_text("return\n")
    git(project, "commit", "-q", "-a", "-m", "Later")
    monkeypatch.setenv("DVC_EXP_NAME", "tiny-seal")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", first)
    origin = read_origin(project)
    assert (origin.name, origin.commit, origin.code_differs) == ("tiny-seal", first, True)
    assert origin.changes == [Change("train_model.steps", "9", "12"), Change("train_model.seed", None, "1")]
    html = page(origin)
    for words in ("tiny-seal", f"{first[:7]} Small &lt;steps&gt;, with changes of code", "<td>9</td><td>12</td>"):
        assert words in html


def test_without_git_there_is_the_time_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("DVC_EXP_BASELINE_REV", raising=False)
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    origin = read_origin(tmp_path)
    assert origin[1:] == (None, None, None, False, [], {})
    assert "Commit" not in page(origin) and f"{origin.written:%Y-%m-%d}" in page(origin)


def test_the_former_figures_are_those_of_the_commit(project):
    (project / SUMMARY).write_text('{"skills": 0.75}')
    assert read_origin(project).former == {"skills": 0.5}
    (project / SUMMARY).unlink()
    git(project, "commit", "-qam", "No figures")
    assert read_origin(project).former == {}
