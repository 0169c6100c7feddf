"""Files from elsewhere that a parameter names: they lie in a folder of their own, on which the stage depends."""

from pathlib import Path


def check_external(path: Path, folder: Path, parameter: str) -> None:
    """Raise ValueError, which tells how to bring it there, unless a path lies in the folder that DVC tracks."""
    if path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve():
        return
    place, copy = folder / path.name, "cp -r" if path.is_dir() else "cp"
    raise ValueError(
        f"{parameter} = {str(path)!r}: DVC tracks what lies in {folder} alone: `{copy} {path} {place}` and, where it "
        f"is too large for git, `dvc add {place}` (or `dvc import-url URL {place}`); then name {place}"
    )
