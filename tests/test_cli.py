import io
import pkgutil
import sys

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from chatmill import commands
from chatmill.cli import COMMANDS, main
from chatmill.conversation import END
from chatmill.inference.chat import ChatSession
from chatmill.terminal import converse
from scripted import ScriptedEngine
from tiny import byte_tokenizer, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("cli") / "model")


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


def test_a_prompt_through_a_pipe_is_that_after_p(model, capsys, monkeypatch):
    chat("--model", model, "-p", "Hi there", "--max-tokens", 12)
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi there\n"))
    assert chat("--model", model, "--max-tokens", 12) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "-p", "Hi"], "nowhere: no such model: expected a folder that"),
        (["-p", "Hi"], "no data/export/onnx or data/model here: run `dvc repro`, or name a model with --model"),
        (["--max-tokens", 0, "-p", "Hi"], "--max-tokens 0: expected 1 or more"),
        (["--top-p", 2, "-p", "Hi"], "top_p 2.0: expected more than 0, at most 1"),
        (["--threads", 0, "-p", "Hi"], "--threads 0: expected 1 or more"),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_1(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert chat(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"chatmill: {message}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("prompt", "message"), [(" ", "the prompt is empty"), ("x" * 700, "the message takes 720")])
def test_a_prompt_that_cannot_be_answered_is_refused(prompt, message, model, capsys):
    assert chat("--model", model, "-p", prompt) == 1
    assert capsys.readouterr().err.startswith(f"chatmill: {message}")


def converse_with(typed, *replies):
    """A terminal chat with a model that gives these replies, typed by hand."""
    tokenizer = byte_tokenizer()
    script = [token for reply in replies for token in [*reply.encode(), tokenizer.special[END]]]
    session = ChatSession(ScriptedEngine(script, vocab_size=tokenizer.vocab_size, context=300), tokenizer)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(typed)
        converse(session)
    return session


def test_terminal_answers_until_the_user_leaves(capsys):
    session = converse_with("Hi\r\rAnd you?\r\x04", "Ho", "Fine")
    assert capsys.readouterr().out == "Ho\nFine\n"
    assert [message.text for message in session.conversation] == ["Hi", "Ho", "And you?", "Fine"]


def test_terminal_follows_commands(capsys):
    session = converse_with("/help\r/what\rHi\r/clear\r/bye\r", "Ho")
    shown = capsys.readouterr().out
    assert "/clear" in shown
    assert "unknown command /what: /help lists them\nHo\n" in shown
    assert session.conversation == []


def test_terminal_says_what_is_wrong_and_goes_on(capsys):
    converse_with("x" * 400 + "\rHi\r\x04", "Ho")
    lines = capsys.readouterr().out.splitlines()
    assert "shorten it" in lines[0]
    assert lines[1] == "Ho"


def test_every_command_is_a_module_and_every_module_a_command():
    modules = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == set(COMMANDS)
