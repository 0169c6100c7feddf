"""What a token takes in `chatmill chat`, in a terminal and by -p, beside the engine's own time in the same chats.

    python tests/benchmarks/terminal.py [MODEL] [--rounds N] [--threads N]

MODEL is any that chats (default: data/export/onnx). The program runs in a pseudo-terminal, in which the questions are
typed. Its answers are timed from when a question was read to when the answer and its statistics are printed; the
engine's own time is that of its calls within, for the same tokens. So the ratio is what tokenizer, template, sampler,
detokenizer, tool and terminal add, in a chat whose processor rests between the answers, as it does while one types.
`alone` is the engine's time for the same ids in a loop that does nothing else.
"""

import argparse
import contextlib
import io
import os
import pty
import select
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "stages"))

from chatmill.app import cli  # noqa: E402
from chatmill.app.terminal.terminal_chat import TerminalChat  # noqa: E402
from chatmill.inference.chat_session import ChatSession  # noqa: E402
from chatmill.inference.model_loading import load_model, threads_for_chat  # noqa: E402

QUESTIONS = (ROOT / "data/raw/prompts/free.txt").read_text(encoding="utf-8").splitlines()
QUIET = 0.3  # seconds without output, after which the next question is typed


class Clock:
    """The seconds and tokens of the answers of one program, and of the engine's calls in them."""

    def __init__(self) -> None:
        self.answers = self.engine = 0.0
        self.tokens = 0

    def watch(self) -> None:
        """Time `show_answer`, and each call of the engine's `append`."""
        show, clock = TerminalChat.show_answer, self

        def timed(chat: TerminalChat, answer: object) -> None:
            engine_class = type(chat.session.engine)
            append = engine_class.append

            def timed_append(engine: object, ids: list[int]) -> object:
                started = perf_counter()
                logits = append(engine, ids)
                clock.engine += perf_counter() - started
                return logits

            engine_class.append = timed_append
            started = perf_counter()
            try:
                show(chat, answer)
            finally:
                engine_class.append = append
            clock.answers += perf_counter() - started
            clock.tokens += chat.session.answer_stats.tokens

        TerminalChat.show_answer = timed

    def line(self) -> str:
        return f"{self.answers} {self.engine} {self.tokens}"


def run_program(arguments: list[str], out: int) -> None:
    """Run the program, and write the clock's line to a pipe."""
    clock = Clock()
    clock.watch()
    with contextlib.suppress(SystemExit):
        cli.main(arguments)
    os.write(out, clock.line().encode())


def type_questions(arguments: list[str], questions: list[str]) -> tuple[float, float, int]:
    """The clock of a program in a terminal, after it was asked the questions one by one."""
    inward, outward = os.pipe()
    process, terminal = pty.fork()
    if not process:
        os.environ["TERM"] = "xterm"
        run_program(arguments, outward)
        os._exit(0)
    os.close(outward)
    _until_quiet(terminal, 3.0)
    for question in questions:
        os.write(terminal, question.encode() + b"\r")
        _until_quiet(terminal, QUIET)
    os.write(terminal, b"\x04")
    _until_quiet(terminal, QUIET)
    with os.fdopen(inward) as stream:
        answers, engine, tokens = stream.read().split()
    os.waitpid(process, 0)
    os.close(terminal)
    return float(answers), float(engine), int(tokens)


def _until_quiet(terminal: int, seconds: float) -> None:
    while select.select([terminal], [], [], seconds)[0]:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            return
        if b"\x1b[6n" in data:  # where is the cursor?
            os.write(terminal, b"\x1b[1;1R")


def ask_once(model: Path, threads: list[str]) -> tuple[float, float, int]:
    """The clock of `chatmill chat -p` for each question, with its answer on a pipe."""
    clock = Clock()
    clock.watch()
    for question in QUESTIONS:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["chat", "--model", str(model), *threads, "-p", question])
    return clock.answers, clock.engine, clock.tokens


def alone(model: Path, threads: int) -> float:
    """Seconds of a token in the engine alone, after each prompt."""
    session = ChatSession(*load_model(model, "auto", threads))
    seconds, tokens = 0.0, 0
    for question in QUESTIONS:
        session.clear()
        list(session.ask(question))
        prompt, answer = session.prompt_ids, session.answer_ids
        session.engine.rewind(0)
        session.engine.append(prompt)
        started = perf_counter()
        for i in answer[:-1]:
            session.engine.append([i])
        seconds, tokens = seconds + perf_counter() - started, tokens + len(answer) - 1
    return seconds / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=ROOT / "data/export/onnx")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    threads = ["--threads", str(options.threads)] if options.threads else []
    rows: dict[str, list[tuple[float, float]]] = {"terminal": [], "-p": []}
    bare = []
    for _ in range(options.rounds):
        typed = type_questions(["chat", "--model", str(options.model), *threads], QUESTIONS)
        for name, (answers, engine, tokens) in (("terminal", typed), ("-p", ask_once(options.model, threads))):
            rows[name].append((answers / tokens, engine / tokens))
        bare.append(alone(options.model, options.threads or threads_for_chat(options.model)))
    print("| microseconds a token | chat | engine within | ratio |\n|---|---|---|---|")
    for name, found in rows.items():
        chat, engine = (median(column) * 1e6 for column in zip(*found, strict=True))
        ratios = sorted(one / other for one, other in found)
        print(f"| {name} | {chat:.0f} | {engine:.0f} | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |")
    print(f"| alone | | {median(bare) * 1e6:.0f} | |")


if __name__ == "__main__":
    main()
