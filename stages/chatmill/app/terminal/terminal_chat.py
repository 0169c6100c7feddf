r"""A chat in the terminal: answers on stdout as they are generated, everything else on stderr, and the chat in a file.

The file has JSON lines of `messages`, a dataset format that `prepare` reads:

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

Calls of the calculator and their outputs are written as `tool_calls` and messages of the role `tool`. All messages
are written, also those that were dropped from the context. An exchange whose answer is empty is left out, as it is no
training data.
"""

import json
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from chatmill.app.terminal.text import WordWrap, notify, plural, printable
from chatmill.app.terminal.tokens import show_tokens
from chatmill.conversation import Conversation, Message
from chatmill.engines.engine import Engine
from chatmill.inference.chat_session import AnswerStats, ChatSession
from chatmill.pipeline.outputs import format_size
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class Transcript:
    """A new file: a chat a line, complete after every answer. It is created for the first answer."""

    def __init__(self, name: str) -> None:
        """In a folder it is named by the time. Raises ValueError or OSError where it could not be written."""
        path = Path(os.path.expanduser(name))
        if str(path).startswith("~"):
            raise ValueError(f"{name}: no such home folder")
        if path.is_dir() or name.endswith("/"):
            path /= f"chat-{datetime.now():%Y%m%d-%H%M%S-%f}.jsonl"
        if path.exists():
            raise ValueError(f"{path} already exists and is not overwritten: choose another name, or a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path.parent}: no permission to write: choose another folder")
        self.path, self.is_created = path, False
        self._lines = [""]  # of which the last is that of the current conversation

    def write(self, conversation: Conversation) -> None:
        self._lines[-1] = to_json_line(conversation)
        if not self.is_created:
            if not self._lines[-1]:
                return
            self.path.touch(exist_ok=False)  # another chat may have created it meanwhile
            self.is_created = True
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text("".join(self._lines), encoding="utf-8")
        temporary.replace(self.path)

    def start_conversation(self) -> None:
        self._lines.append("")


def save_chat(conversation: Conversation, name: str) -> Path:
    """Write a conversation to a file, or into a folder, and return the file. Raises ValueError where it is empty."""
    if not to_json_line(conversation):
        raise ValueError("the conversation is empty: there is nothing to save")
    transcript = Transcript(name)
    transcript.write(conversation)
    return transcript.path


def to_json_line(conversation: Conversation) -> str:
    """The exchanges whose answer is not empty, as one line; "" without any. `read_chat` reads it."""
    system = [message for message in conversation if message.role == "system"]
    turns, exchanges = conversation[len(system) :], list[Message]()
    for question, answer in zip(turns[::2], turns[1::2], strict=False):
        if any(part.text.strip() for part in answer.parts):
            exchanges += [question, answer]
    if not exchanges:
        return ""
    messages = [entry for message in (*system, *exchanges) for entry in _entries(message)]
    return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def _entries(message: Message) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if part.kind == "text":
            yield {"role": message.role, "content": part.text}
        elif part.kind == "call":
            function = {"name": "calculator", "arguments": json.dumps({"expression": part.text}, ensure_ascii=False)}
            yield {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        else:
            yield {"role": "tool", "content": part.text}


@dataclass
class TerminalChat:
    """A chat session in the terminal, which prints statistics after each answer and, if `verbose`, its tokens."""

    session: ChatSession
    transcript: Transcript | None = None
    show_notices: bool = True
    verbose: bool = False

    def ask(self, question: str) -> None:
        check_text(question)
        self.show_answer(self.session.ask(question))

    def show_answer(self, answer: Generator[str, None, None]) -> None:
        """Print an answer as it is generated, then its statistics; add it to the transcript.

        Raises what the generator raises, and KeyboardInterrupt; the text generated until then is saved.
        """
        num_dropped, piece = self.session.num_dropped, ""
        wrap = WordWrap() if sys.stdout.isatty() else None
        columns = shutil.get_terminal_size().columns
        try:
            with closing(answer):
                for piece in answer:
                    print(wrap.feed(printable(piece), columns) if wrap else piece, end="", flush=True)
        except (KeyboardInterrupt, ValueError, MemoryError) as error:
            if piece:  # the line is begun
                print(flush=True)
            if isinstance(error, KeyboardInterrupt):
                notify("stopped")
            raise
        finally:
            self.update_transcript()
        print(flush=True)
        self._report(num_dropped)

    def update_transcript(self) -> None:
        if self.transcript:
            self.transcript.write(self.session.conversation)

    def start_conversation(self, conversation: Conversation) -> None:
        if self.transcript:
            self.transcript.start_conversation()
        self.session.set_conversation(conversation)
        self.session.answer_stats = None  # of an answer that is no longer there

    def load(self, name: str, conversation: Conversation) -> str:
        """Continue the conversation of the file `name`, less a last unanswered message; return a line on its size."""
        if conversation[-1].role == "user":
            *conversation, _ = conversation
            notify("the last message has no answer and was dropped")
        self.start_conversation(conversation)
        return f"{name}: {plural(len(conversation), 'message')} loaded; /show prints them"

    def _report(self, num_dropped: int) -> None:
        session = self.session
        if lost := session.tokenizer.lost(session.conversation[-2].text):
            notify(f"the model's tokenizer has no tokens for {lost!r}: it read your message without them")
        if session.num_dropped > num_dropped:
            context = f"the context of {session.engine.context:,} tokens"
            notify(f"the {session.num_dropped} oldest messages no longer fit into {context} and were dropped")
        if self.verbose:
            show_tokens(session)
        if self.show_notices and session.answer_stats:
            notify(f"[{format_stats(session.answer_stats, session)}]", dim=True)


def format_stats(stats: AnswerStats, session: ChatSession) -> str:
    used, context = stats.prompt_tokens + stats.tokens, session.engine.context
    parts = [plural(stats.tokens, "token")]
    if stats.tokens > 1:
        parts.append(f"{stats.tokens_per_second:,.1f} tokens/s")
    parts += [f"first after {1000 * stats.first_token:.0f} ms", f"context {used:,} of {context:,}"]
    if not stats.stopped:
        parts.append(f"cut off: {'the context is full' if used >= context else f'max_tokens {session.max_tokens:,}'}")
    return ", ".join(parts)


def describe_session(session: ChatSession) -> str:
    engine = session.engine
    parts = [f"{engine.name} on {device_name(engine)}", format_size(engine.num_bytes), f"context {engine.context:,}"]
    template = session.template
    return ", ".join([*parts, f"template {template.name}" if template.is_chat else "no template: it continues text"])


def device_name(engine: Engine) -> str:
    """The device of an engine; for an NVIDIA GPU that PyTorch uses, also its name and free memory."""
    if engine.device == "cpu" or "torch" not in sys.modules:
        return engine.device
    from chatmill.engines.pytorch_engine import describe_device  # exports run where PyTorch is not installed

    return describe_device(engine.device)
