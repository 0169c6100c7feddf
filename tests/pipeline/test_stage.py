import os
import signal
import subprocess
import sys
import time

import pytest

from support.paths import SOURCE

SCRIPT = '''
"""Write a number."""
import os, sys, time
from pathlib import Path
from chatmill.pipeline.params_file import PositiveInt
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import on_success, stage

@stage
def main(raw: Path, out: Output, *, number: PositiveInt, rate: float = 0.5, other: Section) -> None:
    text = raw.read_text()
    out.write_text(f"{text} {number} {rate} {sorted(other)}")
    on_success(lambda: print(Path("out.txt").exists(), out.exists()))
    if text == "wait":
        print("ready", flush=True)
        time.sleep(60)
    if text == "bad":
        raise ValueError("raw.txt:1: bad text: write another")
'''


@pytest.fixture
def project(tmp_path):
    (tmp_path / "count.py").write_text(SCRIPT)
    (tmp_path / "raw.txt").write_text("hello")
    (tmp_path / "params.yaml").write_text("count: {number: 3, rate: 1e-3}\nother: {a: 1}\n")
    return tmp_path


CALL = ("count.py", "raw.txt", "out.txt")


def run(project, *arguments):
    command, environment = [sys.executable, *(arguments or CALL)], os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def start(project, *arguments, **pipes):
    command, environment = [sys.executable, *(arguments or CALL)], os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(command, cwd=project, env=environment, text=True, **pipes or {"stdout": subprocess.PIPE})


def test_files_and_parameters_reach_main(project):
    assert run(project).returncode == 0
    assert (project / "out.txt").read_text() == "hello 3 0.001 ['a']"
    assert {file.name for file in project.iterdir()} == {"count.py", "raw.txt", "params.yaml", "out.txt", ".cache"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{number: 3, colour: red}", "count: params.yaml: unknown parameter count.colour: expected one of number, "),
        ("{}", "count: params.yaml: missing parameter count.number"),
        ("{number: 0}", "count: params.yaml: count.number: expected an integer above 0, got 0"),
        ("{number: 1.5}", "count: params.yaml: count.number: expected an integer above 0, got 1.5"),
        ("{number: 3, rate: abc}", 'count: params.yaml: count.rate: expected a number, got "abc"'),
        ("[1]", "count: params.yaml: count: expected keys and values, got [1]"),
        ("{", "count: params.yaml: not YAML"),
    ],
)
def test_a_wrong_parameter_is_one_line_that_names_its_key(project, section, message):
    (project / "params.yaml").write_text(f"count: {section}\n")
    result = run(project)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_what_comes_afterwards_finds_the_outputs_in_their_places(project):
    assert run(project).stdout.splitlines()[1] == "True False"
    (project / "raw.txt").write_text("bad")
    assert len(run(project).stdout.splitlines()) == 1


def test_a_stage_says_first_what_it_does_and_last_what_it_made(project):
    assert run(project).stdout.splitlines()[::2] == ["count: write a number", "count: made out.txt (19 bytes) in 0 s"]


def test_a_missing_file_is_named(project):
    result = run(project, "count.py", "nowhere.txt", "out.txt")
    assert (result.returncode, result.stderr) == (1, "count: nowhere.txt: no such file or directory\n")


def test_a_known_mistake_is_one_line_and_nothing_is_written(project):
    (project / "out.txt").write_text("before")
    (project / "raw.txt").write_text("bad")
    result = run(project)
    assert (result.returncode, result.stderr) == (1, "count: raw.txt:1: bad text: write another\n")
    assert (project / "out.txt").read_text() == "before"


def test_a_killed_stage_writes_nothing_and_the_next_sweeps_up(project):
    (project / "raw.txt").write_text("wait")
    process = start(project)
    assert [process.stdout.readline() for _ in range(2)] == ["count: write a number\n", "ready\n"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (project / "out.txt").exists()
    (project / "raw.txt").write_text("hello")
    assert run(project).returncode == 0
    assert {file.name for file in (project / ".cache").iterdir()} == {"locks"}


def test_a_stage_dies_with_its_parent(project):
    (project / "raw.txt").write_text("wait")
    code = f"import subprocess; subprocess.run([{sys.executable!r}, 'count.py', 'raw.txt', 'out.txt'])"
    parent = start(project, "-c", code)
    assert [parent.stdout.readline() for _ in range(2)][1] == "ready\n"
    parent.kill()
    assert parent.stdout.read() == ""  # the pipe closes when the stage, which holds it too, is gone
    assert not (project / "out.txt").exists()


def test_two_runs_of_a_stage_take_turns(project):
    (project / "raw.txt").write_text("wait")
    first = start(project)
    assert [first.stdout.readline() for _ in range(2)][1] == "ready\n"
    (project / "raw.txt").write_text("hello")
    second = start(project, stderr=subprocess.PIPE)
    assert second.stderr.readline() == "count: waiting for another run of this stage\n"
    time.sleep(0.2)
    assert not (project / "out.txt").exists()
    first.kill()
    first.wait()
    assert second.wait() == 0
    assert (project / "out.txt").read_text().startswith("hello")
