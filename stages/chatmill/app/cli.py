"""The program `chatmill`: each command is a module of chatmill.app.commands, imported when it is called."""

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence

from chatmill.app.terminal.text import printable
from chatmill.pipeline.processes import USER_ERRORS, error_line

COMMANDS = {
    "chat": "chat with a model in the terminal",
    "completion": "print a script that completes commands, options and files in bash, zsh or fish",
    "compare": "compare models or experiments on the same prompts or data",
    "evaluate": "measure the bits per byte of models on conversations or texts",
    "export-tokenizer": "convert a tokenizer to every format that can express it",
    "gguf": "convert a model to GGUF, for llama.cpp and ollama",
    "pack": "pack a model for others: one folder for all runtimes, with a model card",
    "page": "write a page that is one file: a model to chat with in a browser, without a server",
    "prepare": "look at a dataset, and propose its section for params.yaml",
    "qwen3c": "convert a model to the Q8_0 files of qwen3.c",
    "repair": "remove what is damaged or was left by killed commands, so that `dvc repro` restores it",
    "serve": "serve models: a chat page in the browser, and an OpenAI-compatible API",
    "show": "show a text or a conversation token by token",
    "verify": "check outputs, inputs, DVC's cache and remotes against dvc.lock",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. An error of the user is one line on stderr and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    open_closed_streams()
    atexit.register(gc.freeze)  # else what PyTorch imported is searched for garbage at exit, for half a second
    try:
        options = build_parser(*arguments[:1]).parse_args(arguments)
        code: int | None = options.run(options)
        return code or 0
    except BrokenPipeError:  # as in `chatmill show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:  # where only the packages for a chat are installed
        if str(error.name).startswith("chatmill"):
            raise
        print(f"chatmill: {arguments[0]} needs {error.name}: pip install {error.name}", file=sys.stderr)
        return 1
    except USER_ERRORS as error:
        print(f"chatmill: {printable(error_line(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser(*command_names: str) -> argparse.ArgumentParser:
    """The command line: the names of all commands, and the options of those that are named."""
    top = argparse.ArgumentParser(
        prog="chatmill",
        description="Chat with small chat models, and measure, compare and serve them.",
        epilog="`chatmill COMMAND --help` lists the options of a command; `dvc repro` trains a model.",
    )
    version_line = versions() if any(name.startswith("-") for name in command_names) else ""
    top.add_argument(
        "--version", action="version", version=version_line, help="show the versions of chatmill, Python, torch"
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name in command_names:
            module = importlib.import_module(f"chatmill.app.commands.{name.replace('-', '_')}")
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            command.epilog = getattr(module, "EPILOG", None)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return top


def versions() -> str:
    """The versions of chatmill, Python and torch in one line; torch is not imported."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return f"chatmill {installed('chatmill')}, Python {sys.version.split()[0]}, torch {installed('torch')}"


def open_closed_streams() -> None:
    """Open missing standard streams on the null device, so that no other file gets their descriptors."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
