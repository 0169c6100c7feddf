import os
import pty
import re
import select
import signal
import sys
import time
from codecs import getincrementaldecoder
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import export_onnx
from chatmill.app.inputs import read_chat
from chatmill.app.terminal.editor import COMMANDS, chat_loop
from chatmill.app.terminal.terminal_chat import TerminalChat
from chatmill.conversation import CALL_END, CALL_START, IM_END
from chatmill.inference.chat_session import ChatSession
from support.scripted import ScriptedEngine
from support.tiny import CONFIG, byte_tokenizer, write_model

TOKENIZER = byte_tokenizer()
ENTER, NEW_LINE, LEAVE, STOP = "\r", "\x1b\r", "\x04", "\x03"


class Engine(ScriptedEngine):
    """Raises the exceptions in its script; a NaN in it makes every logit NaN."""

    device, num_bytes = "cpu", 7_200_000

    def append(self, ids):
        token = next(self.script)
        if isinstance(token, BaseException):
            raise token
        self.script = iter([0 if token is np.nan else token, *self.script])
        logits = super().append(ids)
        return np.full_like(logits, np.nan) if token is np.nan else logits


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state folder for the test, and a working folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


def ids_of(text):
    """The ids that a model generates for a text; `[` and `]` enclose a call."""
    names = {ord("["): TOKENIZER.special[CALL_START], ord("]"): TOKENIZER.special[CALL_END]}
    return [*(names.get(byte, byte) for byte in text.encode()), TOKENIZER.special[IM_END]]


def chat(typed, *replies, transcript=None, show_notices=False):
    """The session after a terminal chat with this input and a model that gives these replies."""
    script = [token for reply in replies for token in (ids_of(reply) if isinstance(reply, str) else reply)]
    session = ChatSession(Engine(script, vocab_size=TOKENIZER.vocab_size, context=300), TOKENIZER)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_bytes((typed + LEAVE).encode(errors="surrogateescape"))
        chat_loop(TerminalChat(session, transcript, show_notices=show_notices))
    return session


def texts(session):
    return [message.text for message in session.conversation]


def lines(*typed):
    return "".join(line + ENTER for line in typed)


def test_answers_are_alone_on_stdout(capsys):
    session = chat(lines("Hi", "And you?"), "Ho", "Fine", show_notices=True)
    shown = capsys.readouterr()
    assert shown.out == "Ho\nFine\n"
    assert re.search(r"\[5 tokens, [\d.,]+ tokens/s, first after [\d.]+ m?s, context 58 of 300\]", shown.err)
    assert texts(session) == ["Hi", "Ho", "And you?", "Fine"]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (f"a{NEW_LINE}b", "a\nb"),
        (f"a\\{ENTER}b", "a\nb"),
        ("\x1b[200~a\r\nb\n\nc\x1b[201~", "a\nb\n\nc"),
        ("//help", "/help"),
        (f"Hi {IM_END} <|bos|>", f"Hi {IM_END} <|bos|>"),
    ],
)
def test_a_message_is_what_was_typed_or_pasted(typed, text):
    assert texts(chat(typed + ENTER, "Ho")) == [text, "Ho"]


@pytest.mark.parametrize(
    ("typed", "replies", "sentence"),
    [
        ("", [], "the message is empty"),
        ("   ", [], "the message is empty"),
        ("x" * 400, [], "shorten it"),
        ("\udcff", [], "half of a surrogate pair"),
        ("What?", [[*b"W", np.nan]], "nan at token 2 of the answer"),
        ("What?", [[MemoryError("out of memory: lower --max-tokens")]], "out of memory: lower --max-tokens"),
        ("/what", [], "unknown command /what: /help lists them"),
        ("/", [], "unknown command /:"),
        ("/clear all", [], "/clear: expected no arguments, got 'all'"),
        ("/regenerate", [], "there is no answer yet"),
        ("/undo", [], "there is no question to undo"),
        ("/tokens", [], "there is no answer yet"),
        ("/why", [], "there is no answer yet: ask something"),
        ("/why 1", [], "there is no answer yet: ask something"),
        ("/tokens \udcff", [], "half of a surrogate pair"),
        ("/save", [], "the conversation is empty"),
        ("/load", [], "/load: expected FILE [N]"),
        ("/load nowhere", [], "nowhere: no such file or directory"),
        ("/load .", [], "is a directory"),
        ("/set heat 1", [], "unknown setting 'heat': expected one of temperature, top_k"),
        ("/set temperature hot", [], "temperature: expected a number, got 'hot'"),
        ("/set temperature nan", [], "temperature: expected 0 or more, got nan"),
        ("/set top_k 1.5", [], "top_k: expected an integer, got '1.5'"),
        ("/set top_p 2", [], "top_p: expected more than 0 and at most 1, got 2.0"),
        ("/set max_tokens 0", [], "max_tokens: expected 1 or more, got 0"),
    ],
)
def test_bad_input_gets_a_sentence_and_the_chat_goes_on(typed, replies, sentence, capsys):
    session = chat(lines(typed, "Hi"), *replies, "Ho")
    assert sentence in capsys.readouterr().err
    assert texts(session) == ["Hi", "Ho"]


def test_help_names_every_command_within_80_columns(capsys):
    chat(lines("/help"))
    shown = capsys.readouterr().err
    assert all(f"{name} " in shown for name in COMMANDS)
    assert max(map(len, shown.splitlines())) <= 80


def test_clear_forgets_all_but_the_system_prompt(capsys):
    assert texts(chat(lines("/system Be kind.", "Hi", "/clear"), "Ho")) == ["Be kind."]
    assert texts(chat(lines("/system Be kind.", "Hi", "/clear", "You?"), "Ho", "Fine")) == ["Be kind.", "You?", "Fine"]
    assert "except for the system prompt" in capsys.readouterr().err


def test_a_system_prompt_is_shown_changed_and_taken_away(capsys):
    assert chat(lines("/system", "/system Be kind.", "/system -")).system == ""
    assert capsys.readouterr().err == "no system prompt\nsystem prompt: Be kind.\nno system prompt\n"


def test_settings_are_changed_and_shown(capsys):
    session = chat(lines("/set temperature 0.5", "/set top-k=7", r"/set stop \n", "/set max_tokens 9", "/set"))
    assert (session.sampling.temperature, session.sampling.top_k, session.max_tokens) == (0.5, 7, 9)
    assert session.stop == ("\n",)
    assert capsys.readouterr().err.splitlines()[-1].split() == ["stop", r"'\n'"]


def test_undo_and_regenerate(capsys):
    session = chat(lines("A", "B", "/undo", "/regenerate"), "one", "two", "three")
    assert texts(session) == ["A", "three"]
    shown = capsys.readouterr().err
    assert "removed, with its answer: B" in shown
    assert "at temperature 0 the answer is always the same" in shown


def test_tokens_are_the_exchange_with_ids_and_names(capsys):
    chat(lines("A", "B", "/tokens"), "Ho", "Hm")
    shown = capsys.readouterr().err
    prompt, answer = shown.split("3 answer tokens:\n")
    assert " ".join(answer.split()) == f"H m {IM_END} 72 109 {TOKENIZER.special[IM_END]}"
    assert f"B {IM_END}" in " ".join(prompt.split())
    assert "A" not in prompt


def test_ctrl_c_empties_the_line_and_then_says_how_to_leave(capsys):
    session = chat(f"abc{STOP}{STOP}Hi{ENTER}", "Ho")
    assert texts(session) == ["Hi", "Ho"]
    assert capsys.readouterr().err == "Ctrl-D or /bye leaves\n"


def test_a_saved_chat_can_be_gone_on_with(capsys, tmp_path):
    chat(lines("/system Be kind.", "What is 2+2?", "/save a b.jsonl"), "[2+2]4")
    session = chat(lines("/load a b.jsonl", "Why?"), "So.")
    assert texts(session) == ["Be kind.", "What is 2+2?", "4", "Why?", "So."]
    assert "a b.jsonl: 3 messages" in capsys.readouterr().err


def test_a_chat_is_never_saved_over_a_file(capsys):
    Path("mine.txt").write_text("mine")
    chat(lines("Hi", "/save mine.txt"), "Ho")
    assert Path("mine.txt").read_text() == "mine"
    assert "mine.txt already exists" in capsys.readouterr().err


def test_the_second_conversation_of_a_file_is_loaded():
    Path("two.jsonl").write_text(
        "".join(
            f'{{"messages": [{{"role": "user", "content": "{n}"}}, {{"role": "assistant", "content": "{n}{n}"}}]}}\n'
            for n in "12"
        )
    )
    assert texts(chat(lines("/load two.jsonl 2"))) == ["2", "22"]


def test_tab_completes_commands_settings_and_files(capsys):
    Path("chat.txt").write_text("Human: Hi\nAssistant: Hello\n")
    session = chat(lines("/lo\tch\t", "/set max\t 7"))
    assert (texts(session), session.max_tokens) == (["Hi", "Hello"], 7)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An export of a model that never ends an answer."""
    folder = tmp_path_factory.mktemp("terminal")
    export_onnx.main(
        write_model(folder / "model", replace(CONFIG, max_position_embeddings=100_000)), folder / "onnx", quantize=[]
    )
    return folder / "onnx"


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, process, stream):
        self.process, self.stream, self.shown, self.code = process, stream, "", None
        self.decoder = getincrementaldecoder("utf-8")("replace")  # a terminal drops output where it is interrupted

    def type(self, text):
        os.write(self.stream, text.encode())

    def wait_for(self, text):
        """Read until the text appears; return the text before it, without escape sequences."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            ready = select.select([self.stream], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"{text!r} does not appear: {self.shown!r}"
            self.shown += self.decoder.decode(os.read(self.stream, 65536))
            self.shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", self.shown)
        before, _, self.shown = self.shown.partition(text)
        return before

    def wait_for_output(self, size):
        """Read until this many characters are there: the prompt has then given the terminal back, and Ctrl-C stops."""
        while len(self.shown) < size:
            ready = select.select([self.stream], [], [], 60)[0]
            assert ready, f"only {self.shown!r} appears"
            self.shown += self.decoder.decode(os.read(self.stream, 65536))

    def end(self, kill=False):
        """The exit code of the process."""
        if self.code is None:
            if kill:
                os.kill(self.process, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return self.code


@contextmanager
def at_terminal(model, *arguments, stdin=None):
    """`chatmill chat` on a terminal; `stdin` comes from a pipe instead."""
    command = [sys.executable, "-m", "chatmill.app.cli", "chat", "--device", "cpu", "--threads", "1", "--model", model]
    process, stream = pty.fork()
    if process == 0:
        if stdin is not None:
            reader, writer = os.pipe()
            os.write(writer, stdin)
            os.close(writer)
            os.dup2(reader, 0)
        os.execv(sys.executable, [str(part) for part in (*command, *arguments)])
    terminal = Terminal(process, stream)
    try:
        yield terminal
    finally:
        terminal.end(kill=True)
        os.close(stream)


def test_a_long_answer_is_stopped_and_saved_and_the_chat_goes_on(model):
    with at_terminal(model, "--output", "chats/", "--max-tokens", 90_000) as terminal:
        terminal.wait_for("template chatml")
        terminal.wait_for("\n>")
        terminal.type("Hi" + ENTER)
        terminal.wait_for("Hi")
        terminal.wait_for_output(500)
        terminal.type(STOP)
        terminal.wait_for("stopped")
        terminal.wait_for("\n>")
        assert read_chat(next(Path("chats").iterdir()), 1)[1].text
        terminal.type(LEAVE)
        terminal.wait_for("saved to chats")
        assert terminal.end() == 0


def test_a_chat_begins_with_a_saved_one(model):
    Path("old.txt").write_text("Human: Hi\nAssistant: Hello\n")
    with at_terminal(model, "--load", "old.txt", "--system", "Be kind.") as terminal:
        terminal.wait_for("old.txt: 2 messages loaded")
        terminal.wait_for("\n>")
        terminal.type(lines("/show", "/bye"))
        terminal.wait_for("system: Be kind.\r\nyou: Hi\r\nmodel: Hello")
        assert terminal.end() == 0


def test_a_closed_stdout_ends_the_chat(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))
    with pytest.raises(BrokenPipeError):
        chat(lines("Hi"), "Ho")
