"""The `chatmill` command: each of its commands is a module of chatmill.commands, loaded when it is called."""

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "chat": "chat with a model in the terminal",
    "export-tokenizer": "write a tokenizer made anywhere in every format that can express it",
    "show": "show a text or a conversation token by token",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what goes wrong is one line on stderr and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser(arguments[0] if arguments else "").parse_args(arguments)
    try:
        options.run(options)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        print(f"chatmill: {place}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"chatmill: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser(chosen: str) -> argparse.ArgumentParser:
    """The command line: all commands by name, and the options of the chosen one."""
    top = argparse.ArgumentParser(prog="chatmill", description="Small chat models that run anywhere.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name == chosen:
            module = importlib.import_module(f"chatmill.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return top


if __name__ == "__main__":
    sys.exit(main())
