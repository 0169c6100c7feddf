"""A chat in the terminal: its settings, which can be changed meanwhile, and its answers as they are generated."""

import os
import re
import shutil
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import fields, replace
from math import inf
from typing import Any

from chatmill.app.terminal.saved_chats import Transcript
from chatmill.app.terminal.tokens import (
    WordWrap,
    format_duration,
    format_size,
    plural,
    printable,
    show_tokens,
    wrap_text,
)
from chatmill.conversation import Conversation
from chatmill.engines.engine import Engine
from chatmill.inference.chat_session import AnswerStats, ChatSession
from chatmill.inference.sampler import Sampling
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

MAX_THREADS = 1024
EMPTY = "-"  # as an argument it removes a text
SAMPLING_SETTINGS = [field.name for field in fields(Sampling)]
INTEGER_SETTINGS = ("max_tokens", *(field.name for field in fields(Sampling) if isinstance(field.default, int)))
SETTINGS = (*SAMPLING_SETTINGS, "max_tokens", "stop")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def format_setting(session: ChatSession, name: str) -> str:
    """The value of a setting as text. Raises ValueError for an unknown name."""
    _check(name)
    if name == "stop":
        return ", ".join(map(repr, session.stop)) or EMPTY
    return str(getattr(session.sampling if name in SAMPLING_SETTINGS else session, name))


def change_setting(session: ChatSession, name: str, text: str) -> None:
    """Change a setting. Raises ValueError for an unknown name or a value out of range."""
    _check(name)
    if name == "stop":
        session.stop = () if text == EMPTY else (unescaped(text),)
        return
    try:
        value: Any = int(text) if name in INTEGER_SETTINGS else float(text)
    except ValueError as error:
        expected = "an integer" if name in INTEGER_SETTINGS else "a number"
        raise ValueError(f"{name}: expected {expected}, got {text!r}") from error
    if name == "max_tokens":
        session.max_tokens = check_positive(name, value)
    else:
        session.sampling = replace(session.sampling, **{name: value})


def check_positive(name: str, value: int, maximum: float = inf) -> int:
    """The value. Raises ValueError where it is less than 1, or above `maximum`."""
    if not 1 <= value <= maximum:
        raise ValueError(f"{name}: expected 1 {'or more' if maximum == inf else f'to {maximum}'}, got {value}")
    return value


def unescaped(text: str) -> str:
    r"""Replace `\n`, `\t` and `\\` by a newline, a tab and a backslash."""
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def _check(name: str) -> None:
    if name not in SETTINGS:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")


# A chat in the terminal: answers on stdout, everything else on stderr.


class TerminalChat:
    """A chat session in the terminal, which prints statistics after each answer and, if `verbose`, its tokens."""

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
        self.answer_stats: list[AnswerStats] = []  # of all answers

    def ask(self, question: str) -> None:
        """Answer a question, as `show_answer` does. Raises ValueError also where it is not valid Unicode."""
        check_text(question)
        self.show_answer(self.session.ask(question))

    def show_answer(self, answer: Generator[str, None, None]) -> None:
        """Print an answer as it is generated, then its statistics; add it to the transcript.

        Raises what the generator raises, and KeyboardInterrupt; the text generated until then is saved.
        """
        before, num_dropped, shown = self.session.answer_stats, self.session.num_dropped, False
        wrapped = WordWrap()
        try:
            with closing(answer):
                for text in answer:
                    print_text(text, wrapped)
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
        self._report(shown, num_dropped)

    def update_transcript(self) -> None:
        if self.transcript:
            self.transcript.write(self.session.conversation)

    def start_conversation(self) -> None:
        if self.transcript:
            self.transcript.start_conversation()

    def load(self, name: str, conversation: Conversation) -> str:
        """Continue a conversation of a file, without a last message that has no answer; return a line that says so."""
        if conversation[-1].role == "user":
            *conversation, _ = conversation
            notify("the last message has no answer and was dropped")
        self.start_conversation()
        self.session.set_conversation(conversation)
        self.session.answer_stats = None  # the last answer has none, and no ids
        return f"{name}: {plural(len(conversation), 'message')} loaded; /show prints them"

    def _report(self, shown: bool, num_dropped: int) -> None:
        session = self.session
        if lost := session.tokenizer.lost(session.conversation[-2].text if shown else ""):
            notify(f"the model's tokenizer has no tokens for {lost!r}: it read your message without them")
        if session.num_dropped > num_dropped:
            context = f"the context of {session.engine.context:,} tokens"
            notify(f"the {session.num_dropped} oldest messages no longer fit into {context} and were dropped")
        if self.verbose:
            show_tokens(session)
        if self.show_notices and session.answer_stats:
            notify(f"[{'' if shown else 'empty answer: '}{format_stats(session.answer_stats, session)}]", dim=True)


def format_stats(stats: AnswerStats, session: ChatSession) -> str:
    used, context = stats.prompt_tokens + stats.tokens, session.engine.context
    parts = [plural(stats.tokens, "token")]
    if stats.tokens > 1:
        parts.append(f"{stats.tokens_per_second:,.1f} tokens/s")
    parts += [f"first after {format_duration(stats.first_token)}", f"context {used:,} of {context:,}"]
    if not stats.stopped:
        full = used >= context
        parts.append("cut off: the context is full" if full else f"cut off at max_tokens {session.max_tokens:,}")
    return ", ".join(parts)


def describe_session(session: ChatSession) -> str:
    engine = session.engine
    parts = [f"{engine.name} on {device_name(engine)}", format_size(engine.num_bytes), f"context {engine.context:,}"]
    template = session.template
    return ", ".join([*parts, f"template {template.name}" if template.is_chat else "no template: it continues text"])


def device_name(engine: Engine) -> str:
    """The device of an engine; of an accelerator in PyTorch also its name and free memory."""
    if engine.device == "cpu" or "torch" not in sys.modules:
        return engine.device
    from chatmill.engines.pytorch_engine import describe_device  # exports run where PyTorch is not installed

    return describe_device(engine.device)


def print_text(text: str, wrapped: WordWrap) -> None:
    """Print a part of an answer: unchanged, or for a terminal with its control characters replaced, and wrapped."""
    if sys.stdout.isatty():
        text = printable(text) if os.environ.get("TERM") == "dumb" else wrapped.feed(printable(text))
    print(text, end="", flush=True)


def end_line(started: bool) -> None:
    if started:
        print(flush=True)


def notify(text: str, *, dim: bool = False) -> None:
    """Print a message on stderr, dim where requested and the terminal shows colours."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    start, end = ("\x1b[2m", "\x1b[0m") if dim and colours else ("", "")
    lines = wrap_text(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else [printable(text)]
    text = "\n".join(lines)
    print(f"{start}{text}{end}", file=sys.stderr, flush=True)
