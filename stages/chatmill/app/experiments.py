"""Models of other runs: what a DVC experiment, branch, tag or commit holds, without a change to the workspace."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MODEL_FOLDERS = (
    Path("data/export/onnx"),
    Path("data/model"),
)  # where the pipeline leaves them; the first that is there
NO_EXPORT_FILE = "formats.json"  # says why an export is no model
WORKSPACE = "workspace"  # as `dvc exp show` calls what lies in the folder


def default_model() -> Path:
    """The model the pipeline made in this folder. Raises ValueError where there is none."""
    for folder in MODEL_FOLDERS:
        if folder.is_dir() and not (folder / NO_EXPORT_FILE).exists():
            return folder
    raise ValueError(f"no {' or '.join(map(str, MODEL_FOLDERS))} here: run `dvc repro`, or name a model with --model")


@contextmanager
def fetch_model(model: str | Path) -> Iterator[Path]:
    """The path of a model, which for a run that DVC knows is there for as long as it takes to load it."""
    with TemporaryDirectory(prefix="chatmill-", ignore_cleanup_errors=True) as folder:
        yield find_or_fetch(str(model), MODEL_FOLDERS, Path(folder) / "model")


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
            available = [output for output in outputs if files.isdir(output.as_posix())]
            if not available:
                raise ValueError(f"{name}: this run has no {' or '.join(map(str, outputs))}: run `dvc repro` on it")
            for output in available:
                files.get(output.as_posix(), str(folder), recursive=True)
                if not (folder / NO_EXPORT_FILE).exists():
                    break
                shutil.rmtree(folder)
    except (FileNotFoundError, DataIndexError) as error:
        raise ValueError(
            f"{name}: its model is neither in DVC's cache nor in a remote storage: have it pushed where it was made "
            f"(`dvc push`, `dvc exp push`), or make it anew ({rebuild_commands(name)})"
        ) from error
    except DvcException as error:
        raise ValueError(
            f"{name}: no such file or folder, and no experiment, branch, tag or commit either ({error}): "
            "`dvc exp list --all-commits` names the experiments, and no model is downloaded by its name"
        ) from error
    return folder


def rebuild_commands(name: str) -> str:
    """The commands that make the outputs of a run anew."""
    return "`dvc repro`" if name == WORKSPACE else f"`dvc exp apply {name}` or `git checkout {name}`, then `dvc repro`"
