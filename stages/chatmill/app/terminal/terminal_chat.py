"""A chat as its user meets it: answers on stdout, and all that is said about them on stderr."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import closing

from wcwidth import wrap

from chatmill.app.terminal.formatting import format_duration, format_size, plural
from chatmill.app.terminal.printable import printable
from chatmill.app.terminal.saved_chats import Transcript
from chatmill.engines.engine import Engine
from chatmill.inference.chat_session import AnswerStats, ChatSession
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class TerminalChat:
    """A session, what of it is shown, and where it is written down.

    `told` is whether what an answer took is told, `verbose` whether its tokens are shown.
    """

    def __init__(
        self,
        session: ChatSession,
        transcript: Transcript | None = None,
        *,
        show_notices: bool = True,
        verbose: bool = False,
    ) -> None:
        self.session, self.transcript = session, transcript
        self.show_notices, self.verbose = show_notices, verbose
        self.answer_stats: list[AnswerStats] = []  # what each took

    def ask(self, question: str) -> None:
        """Answer a question, as `say` does. Raises ValueError also where it is no Unicode text."""
        check_text(question)
        self.show_answer(self.session.ask(question))

    def show_answer(self, answer: Generator[str, None, None]) -> None:
        """Show an answer as it grows, and what it took; write it down.

        Raises what generating it raises, and KeyboardInterrupt; what was said until then is kept.
        """
        before, forgotten, shown = self.session.answer_stats, self.session.num_dropped, False
        try:
            with closing(answer):
                for text in answer:
                    print_text(text)
                    shown = True
        except KeyboardInterrupt:
            end_line(shown)
            notify("stopped" if shown else "stopped before the answer began")
            raise
        except (ValueError, MemoryError):
            end_line(shown)
            raise
        finally:
            if self.session.answer_stats and self.session.answer_stats is not before:
                self.answer_stats.append(self.session.answer_stats)
            self.update_transcript()
        end_line(True)
        self._report(shown, forgotten)

    def update_transcript(self) -> None:
        """Write the conversation as it is now to the transcript, if there is one."""
        if self.transcript:
            self.transcript.write(self.session.conversation)

    def start_conversation(self) -> None:
        """Leave the conversation that was written down as it is: what follows is another one."""
        if self.transcript:
            self.transcript.start_conversation()

    def _report(self, shown: bool, forgotten: int) -> None:
        session = self.session
        if session.num_dropped > forgotten:
            context = f"the context of {session.engine.context:,} tokens"
            notify(f"the {session.num_dropped} oldest messages no longer fit into {context}, and are left out")
        if self.verbose:
            from chatmill.app.terminal.token_display import show_tokens  # draws with what the editor needs

            show_tokens(session)
        if self.show_notices and session.answer_stats:
            notify(
                f"[{'' if shown else 'the model says nothing: '}{format_stats(session.answer_stats, session)}]",
                dim=True,
            )


def format_stats(stats: AnswerStats, session: ChatSession) -> str:
    """How much, how fast, how full, and whether an answer was cut short."""
    used, context = stats.prompt_tokens + stats.tokens, session.engine.context
    words = [plural(stats.tokens, "token")]
    if stats.tokens > 1:
        words.append(f"{stats.tokens_per_second:,.1f} tokens/s")
    words += [f"first after {format_duration(stats.first_token)}", f"context {used:,} of {context:,}"]
    if not stats.stopped:
        full = used >= context
        words.append("cut short: the context is full" if full else f"cut short at max_tokens {session.max_tokens:,}")
    return ", ".join(words)


def describe_session(session: ChatSession) -> str:
    """Engine, device, size, context and template of a session."""
    engine = session.engine
    words = [f"{engine.name} on {device_name(engine)}", format_size(engine.num_bytes), f"context {engine.context:,}"]
    template = session.template
    return ", ".join([*words, f"template {template.name}" if template.is_chat else "no template: it continues text"])


def device_name(engine: Engine) -> str:
    """Where an engine runs; of an accelerator that PyTorch knows, its name and how much memory is free."""
    if engine.device == "cpu" or "torch" not in sys.modules:
        return engine.device
    from chatmill.engines.torch.pytorch_engine import describe_device  # exports chat where PyTorch is not installed

    return describe_device(engine.device)


def print_text(text: str) -> None:
    """Print some of an answer: exactly, unless it is for a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def end_line(begun: bool) -> None:
    """End the line of an answer that was begun."""
    if begun:
        print(flush=True)


def notify(text: str, *, dim: bool = False) -> None:
    """Say something that is no answer; a quiet line is dim where the terminal is to show colours."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    start, end = ("\x1b[2m", "\x1b[0m") if dim and colours else ("", "")
    text = printable(text)
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(piece for line in text.split("\n") for piece in wrap(line, width) or [""])
    print(f"{start}{text}{end}", file=sys.stderr, flush=True)
