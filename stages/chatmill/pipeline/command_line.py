"""The command line of a stage: its files, in their order or, where they are many, under their names."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from chatmill.pipeline.signatures import Signature

MAX_POSITIONAL = 3  # files; of more, two could be taken for one another


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: see --help")


def parse_files(
    main: Callable[..., None], signature: Signature, name: str, arguments: Sequence[str]
) -> dict[str, Path]:
    """Every file that `main` takes. Raises ValueError where one is missing, or there is another."""
    parser = _Parser(prog=name, description=inspect.getdoc(main), allow_abbrev=False)
    positional = len(signature.files) <= MAX_POSITIONAL
    for file, is_output in signature.files.items():
        option, metavar = f"--{file.replace('_', '-')}", file.upper()
        purpose = "is written" if is_output else "is read"
        if positional:
            parser.add_argument(file, metavar=metavar, type=Path, help=purpose)
        else:
            parser.add_argument(option, dest=file, metavar=metavar, type=Path, required=True, help=purpose)
    return vars(parser.parse_args(arguments))
