"""The `chatmill` command: each of its commands is a module of chatmill.app.commands, loaded when it is called."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from chatmill.app.terminal.printable import printable
from chatmill.pipeline.user_errors import USER_ERRORS, error_line

COMMANDS = {
    "chat": "chat with a model in the terminal",
    "compare": "compare models or experiments on the same prompts",
    "evaluate": "measure the bits per byte of any model on any data",
    "export-tokenizer": "write a tokenizer made anywhere in every format that can express it",
    "serve": "chat with models in the browser, and by OpenAI's API",
    "soft-tokenizer": "learn a model's embeddings from bytes, and give it another tokenizer",
    "show": "show a text or a conversation token by token",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what goes wrong is one line on stderr and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    open_closed_streams()
    try:
        options = build_parser(arguments[0] if arguments else "").parse_args(arguments)
        options.run(options)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except USER_ERRORS as error:
        print(f"chatmill: {printable(error_line(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser(command_name: str) -> argparse.ArgumentParser:
    """The command line: all commands by name, and the options of the chosen one."""
    top = argparse.ArgumentParser(prog="chatmill", description="Small chat models that run anywhere.")
    shown = versions() if command_name.startswith("-") else ""
    top.add_argument("--version", action="version", version=shown, help="show the versions of chatmill, Python, torch")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name == command_name:
            module = importlib.import_module(f"chatmill.app.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return top


def versions() -> str:
    """The versions of chatmill, Python and torch in one line; nothing of torch is loaded."""
    from importlib.metadata import PackageNotFoundError, version  # slower to load than all of this module

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return f"chatmill {installed('chatmill')}, Python {sys.version.split()[0]}, torch {installed('torch')}"


def open_closed_streams() -> None:
    """Give a process that was started without some of its three streams empty ones: no file takes their places."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
