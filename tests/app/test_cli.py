import pkgutil
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, version

import pytest
from packaging.requirements import Requirement

import export_onnx
from chatmill.app import commands
from chatmill.app.cli import COMMANDS, main
from chatmill.conversation import IM_START
from chatmill.datasets.formats.registry import read_dataset
from chatmill.pipeline.processes import error_line
from support.paths import ROOT, SOURCE
from support.tiny import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("cli") / "model")


@pytest.fixture(scope="module")
def graph(model):
    """An export of the model, which another process can run without the seconds that importing PyTorch takes."""
    export_onnx.main(model, model.with_name("onnx"), quantize=[])
    return model.with_name("onnx")


def chat(*arguments):
    return main(["chat", "--threads", "1", "--device", "cpu", *map(str, arguments)])


def test_prompt_is_answered_alone_on_stdout_and_always_alike(model, capsys):
    answers = []
    for _ in range(2):
        assert chat("--model", model, "-p", "Hi", "--max-tokens", 12, "--temperature", 1, "--seed", 5) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        answers.append(shown.out)
    assert answers[0] == answers[1]
    assert answers[0].endswith("\n")


def test_a_prompt_through_a_pipe_is_that_after_p(graph, capsys):
    command = [sys.executable, "-m", "chatmill.app.cli", "chat", "--threads", "1", "--device", "cpu", "--model", graph]
    piped = subprocess.run([*command, "--max-tokens", "12"], input=b"Hi there\n", capture_output=True, check=True)
    assert piped.stdout.decode() == answered(capsys, "--model", graph, "-p", "Hi there", "--max-tokens", 12)
    assert piped.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "-p", "Hi"], "nowhere: no such file or folder, and no experiment"),
        (["-p", "Hi"], "no data/export/onnx or data/model here: name a model with --model, or run `dvc repro` in"),
        (["--max-tokens", 0, "-p", "Hi"], "--max-tokens: expected 1 or more, got 0"),
        (["--top-p", 2, "-p", "Hi"], "top_p: expected more than 0 and at most 1, got 2.0"),
        (["--threads", 0, "-p", "Hi"], "--threads: expected 1 to 1024, got 0"),
        (["--threads", 10**12, "-p", "Hi"], "--threads: expected 1 to 1024, got 1000000000000"),
        (["--output", "~nobody-here/chat.jsonl", "-p", "Hi"], "~nobody-here/chat.jsonl: no such home folder"),
        (
            ["--load", "none.jsonl", "-p", "Hi"],
            "none.jsonl: no such file or directory: load a chat that /save ",
        ),
        (["--load", "bad.txt", "-p", "Hi"], "bad.txt: expected a turn to start with a marker such as Human:"),
        (["--model", "\x1b[2J", "-p", "Hi"], "␛[2J: no such "),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_1(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text("no chat")
    assert chat(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"chatmill: {message}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def answered(capsys, *arguments):
    """The text on stdout."""
    assert chat(*arguments) == 0
    return capsys.readouterr().out


def test_output_is_what_prepare_reads(model, tmp_path):
    file = tmp_path / "new/chat.jsonl"
    assert chat("--model", model, "-p", "Hi", "--max-tokens", 12, "--output", file) == 0
    (item,) = read_dataset(file, "messages", limit=None, seed=0)
    assert [message.role for message in item.conversation] == ["user", "assistant"]
    assert item.conversation[0].text == "Hi"


def test_a_prompt_continues_a_saved_chat(model, capsys, tmp_path):
    common = ("--model", model, "--max-tokens", 12, "-q")
    chat(*common, "-p", "Hi", "--output", tmp_path / "chat.jsonl")
    chat(*common, "-p", "Ho", "--load", tmp_path / "chat.jsonl", "--output", tmp_path / "both.jsonl")
    shown = capsys.readouterr()
    (item,) = read_dataset(tmp_path / "both.jsonl", "messages", limit=None, seed=0)
    assert [message.text for message in item.conversation if message.role == "user"] == ["Hi", "Ho"]
    assert (shown.err, shown.out) == ("", "".join(f"{one.text}\n" for one in item.conversation[1::2]))


def test_a_stop_text_ends_the_answer_before_it(model, capsys):
    common = ("--model", model, "-p", "Hi", "--max-tokens", 12)
    full = answered(capsys, *common)
    assert answered(capsys, *common, "--stop", full[3:5]) == full[:3] + "\n"


def test_verbose_tells_model_tokens_and_speed_on_stderr(model, capsys):
    assert chat("--model", model, "-p", "Hi", "--max-tokens", 12, "--verbose") == 0
    shown = capsys.readouterr()
    assert f"{model}: pytorch on cpu" in shown.err
    assert IM_START in shown.err
    assert IM_START not in shown.out


def test_without_a_terminal_there_is_no_conversation(capsys, model):
    assert chat("--model", model, "-p", "Hi", "--interactive") == 1
    assert "no terminal to chat in: pass a prompt with -p" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "x"), "x: no such file or directory"),
        (ValueError("a\n  b"), "a b"),
        (MemoryError(), "out of memory"),
    ],
)
def test_mistakes_are_one_line(error, line):
    assert error_line(error) == line


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The packed program, built from what git would hold."""
    source = tmp_path_factory.mktemp("wheel")
    shutil.copytree(SOURCE, source / "stages", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", "dist"]
    subprocess.run(command, cwd=source, check=True)
    return next(source.glob("dist/*.whl"))


def with_requirements(names):
    """The packages, and those that pip installs with them."""
    found = list(names)
    for name in found:
        lines = map(Requirement, distribution(name).requires or [])
        needed = [line.name for line in lines if not line.marker or line.marker.evaluate({"extra": ""})]
        found += [name for name in needed if name not in found]
    return found


def link_packages(names, folder):
    """Make packages of this environment importable from a folder, and return their size in bytes."""
    size = 0
    for package in map(distribution, names):
        files = [file for file in package.files if file.parts[0] != ".."]
        size += sum(file.locate().stat().st_size for file in files if file.locate().exists())
        for top in {file.parts[0] for file in files}:
            if not (folder / top).exists():
                (folder / top).symlink_to(package.locate_file(top))
    return size


@pytest.mark.slow
def test_the_wheel_and_the_packages_that_its_page_lists_are_enough(graph, wheel, tmp_path):
    page = (SOURCE / "chatmill/app/README.md").read_text(encoding="utf-8").replace("\\\n", "")
    [listed] = re.findall(r"^pip install --no-deps \S+\.whl (.*)$", page, re.MULTILINE)
    [others] = re.findall(r"^pip install (.*?) +# 30 MB", page, re.MULTILINE)
    link_packages(with_requirements(["onnxruntime"]), tmp_path)
    shutil.unpack_archive(wheel, tmp_path, "zip")
    own_size = sum(file.stat().st_size for file in (tmp_path / "chatmill").rglob("*.*"))
    assert own_size + link_packages(listed.split(), tmp_path) < 60_000_000

    def run(*arguments):
        program = "import sys; sys.path.append('.'); from chatmill.app.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-ISc", program, *arguments]  # no package of this environment is found otherwise
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    answer = run("chat", "--model", graph, "-p", "Hi", "--max-tokens", "12")
    assert (answer.stderr, answer.returncode, bool(answer.stdout)) == ("", 0, True)
    assert run("gguf", "a", "b").stderr == "chatmill: gguf needs torch: pip install torch\n"
    assert "to read it, zstandard is needed: pip install zstandard" in run("chat", "--load", "x").stderr
    assert run("show", "Hi").stderr == "chatmill: show needs zstandard: pip install zstandard\n"
    link_packages(with_requirements(others.split()), tmp_path)
    assert run("show", "Hi", "--tokenizer", graph).stdout.startswith("H")
    for command in ("serve", "compare", "evaluate"):
        assert run(command, "--help").stdout.startswith(f"usage: chatmill {command}")


def test_every_command_is_a_module_and_every_module_a_command():
    modules = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == set(COMMANDS)


def test_version_is_one_line_for_which_nothing_of_torch_is_loaded():
    command = [sys.executable, "-X", "importtime", "-m", "chatmill.app.cli", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = f"chatmill {version('chatmill')}, Python {platform.python_version()}, torch {version('torch')}\n"
    assert (result.stdout, "torch" in result.stderr) == (expected, False)


def test_help_names_every_command_and_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert [name for name in ("--version", *COMMANDS) if name not in shown] == []
