"""The command line of a stage: its files, as positional arguments or, if there are many, as named options."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from chatmill.pipeline.signatures import Signature

MAX_POSITIONAL = 3  # files; more are named, as positions are easily confused


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: see --help")


def parse_files(
    main: Callable[..., None], signature: Signature, name: str, arguments: Sequence[str]
) -> dict[str, Path]:
    """The path of each file that `main` takes. Raises ValueError where one is missing or unknown."""
    parser = _Parser(prog=name, description=inspect.getdoc(main), allow_abbrev=False)
    positional = len(signature.files) <= MAX_POSITIONAL
    for file, is_output in signature.files.items():
        option, metavar = f"--{file.replace('_', '-')}", file.upper()
        purpose = "output file or folder" if is_output else "input file or folder"
        if positional:
            parser.add_argument(file, metavar=metavar, type=Path, help=purpose)
        else:
            parser.add_argument(option, dest=file, metavar=metavar, type=Path, required=True, help=purpose)
    return vars(parser.parse_args(arguments))
