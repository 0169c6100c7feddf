"""A chat in the terminal: a line editor with history, and answers as they are generated."""

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory

from chatmill.inference.chat import ChatSession

HELP = """/help   this list
/clear  forget the conversation
/bye    leave, as Ctrl-D does; Ctrl-C stops an answer"""


def converse(session: ChatSession) -> None:
    """Ask and answer until the user leaves."""
    prompt = PromptSession("> ", history=InMemoryHistory())
    print(f"{session.engine.name}: /help for help, Ctrl-D to leave", file=sys.stderr)
    while True:
        try:
            line = prompt.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if line == "/bye":
            return
        if line:
            respond(session, line)


def respond(session: ChatSession, line: str) -> None:
    """Follow a command, or print the answer to a question."""
    if line == "/help":
        print(HELP)
    elif line == "/clear":
        session.clear()
    elif line.startswith("/"):
        print(f"unknown command {line.split()[0]}: /help lists them")
    else:
        show_answer(session, line)


def show_answer(session: ChatSession, question: str) -> None:
    """Print the answer as it is generated; Ctrl-C ends it there."""
    answer = session.ask(question)
    try:
        for text in answer:
            print(text, end="", flush=True)
    except ValueError as error:
        print(error, end="")
    except KeyboardInterrupt:
        answer.close()
    print()
