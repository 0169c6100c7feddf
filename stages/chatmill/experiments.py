"""Models of other runs: what a DVC experiment, branch, tag or commit holds, without a change to the workspace."""

from collections.abc import Sequence
from pathlib import Path

WORKSPACE = "workspace"  # as `dvc exp show` calls what lies in the folder


def find_or_fetch(name: str, outputs: Sequence[Path], folder: Path) -> Path:
    """The path of this name; else the first of `outputs` that the run of this name has, written into `folder`.

    Raises ValueError where there is no such path or run, and where what the run wrote is no longer to be had.
    """
    if Path(name).exists():
        return Path(name)
    try:
        from dvc.api import DVCFileSystem  # paths are compared where it is not installed
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_data.index import DataIndexError
    except ImportError as error:
        raise ValueError(f"{name}: no such file or folder, and experiments take DVC: pip install dvc") from error
    try:
        with Repo(rev=None if name == WORKSPACE else name) as repo:
            files = DVCFileSystem(repo)
            output = next((output for output in outputs if files.isdir(output.as_posix())), None)
            if output is None:
                raise ValueError(f"{name}: this run has no {' or '.join(map(str, outputs))}: run `dvc repro` on it")
            files.get(output.as_posix(), str(folder), recursive=True)
    except (FileNotFoundError, DataIndexError) as error:
        raise ValueError(
            f"{name}: its model is neither in DVC's cache nor in a remote storage: have it pushed where it was made "
            f"(`dvc push`, `dvc exp push`), or make it anew ({remedy(name)})"
        ) from error
    except DvcException as error:
        raise ValueError(
            f"{name}: no such file or folder, and no experiment, branch, tag or commit either ({error}): "
            "`dvc exp list --all-commits` names the experiments, and no model is downloaded by its name"
        ) from error
    return folder


def remedy(name: str) -> str:
    """The commands that make the outputs of a run anew."""
    return "`dvc repro`" if name == WORKSPACE else f"`dvc exp apply {name}` or `git checkout {name}`, then `dvc repro`"
