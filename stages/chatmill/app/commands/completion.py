"""Print a script that completes the commands, options and files of chatmill in a shell."""

import argparse
from collections.abc import Iterator

import shtab

from chatmill.app import cli

SHELLS = ("bash", "zsh", "fish")
COMPLETED = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY, "MODEL": shtab.FILE, "OUT": shtab.FILE, "PATH": shtab.FILE}
EPILOG = """examples:
  chatmill completion bash > ~/.local/share/bash-completion/completions/chatmill
  chatmill completion zsh > ~/.zfunc/_chatmill         with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  chatmill completion fish > ~/.config/fish/completions/chatmill.fish
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")


def run(options: argparse.Namespace) -> None:
    print(completion_script(options.shell))


def completion_script(shell: str) -> str:
    parser = cli.build_parser(*cli.COMMANDS)
    for action in _actions(parser):
        if action.metavar in COMPLETED:
            action.complete = COMPLETED[action.metavar]  # type: ignore[attr-defined]  # shtab reads it there
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
