"""Models by the names that users give them: paths, and experiments, branches, tags and commits of DVC."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.pipeline.processes import USER_ERRORS, error_line

MODEL_FOLDERS = (Path("data/export/onnx"), Path("data/model"))  # the pipeline writes them; the first one is preferred
NO_EXPORT_FILE = "formats.json"  # is in an export's folder only where the model has no export
WORKSPACE = "workspace"  # what `dvc exp show` calls the files in the folder


def default_model() -> Path:
    """The pipeline's model in this folder. Raises ValueError where there is none."""
    for folder in MODEL_FOLDERS:
        if folder.is_dir() and not (folder / NO_EXPORT_FILE).exists():
            return folder
    folders = " or ".join(map(str, MODEL_FOLDERS))
    raise ValueError(f"no {folders} here: name a model with --model, or run {repro_commands()}")


@contextmanager
def fetch_model(model: str | Path) -> Iterator[Path]:
    """Yield the path of a model. The model of a DVC run is fetched into a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="chatmill-", ignore_cleanup_errors=True) as folder:
        yield find_or_fetch(str(model), Path(folder) / "model")


def find_or_fetch(name: str, folder: Path) -> Path:
    """The path of this name; else the model of the run of this name, copied into `folder`.

    Raises ValueError where there is no such path or run, or the run's model is in no cache or remote storage.
    """
    if Path(name).exists():
        return Path(name)
    try:
        from dvc.api import DVCFileSystem  # paths work where it is not installed
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_data.index import DataIndexError
    except ImportError as error:
        raise ValueError(f"{name}: no such file or folder, and experiments require DVC: pip install dvc") from error
    rebuild = f"rebuild it (`dvc exp apply {name}` or `git checkout {name}`, then `dvc repro`)"
    try:
        with Repo(rev=None if name == WORKSPACE else name) as repo:
            files = DVCFileSystem(repo)
            for output in MODEL_FOLDERS:
                if files.isdir(output.as_posix()):
                    files.get(output.as_posix(), str(folder), recursive=True)
                    if not (folder / NO_EXPORT_FILE).exists():
                        return folder
                    shutil.rmtree(folder)
    except (FileNotFoundError, DataIndexError) as error:
        where = "push it from where it was trained (`dvc push`, `dvc exp push`)"
        message = f"{name}: its model is neither in DVC's cache nor in a remote storage: {where}, or {rebuild}"
        raise ValueError(message) from error
    except (DvcException, AttributeError) as error:  # the latter for a file or folder of a commit, such as HEAD:data
        remedy = "`dvc exp list --all-commits` lists the experiments, and no model is downloaded by its name"
        message = f"{name}: no such file or folder, and no experiment, branch, tag or commit either ({error}): {remedy}"
        raise ValueError(message) from error
    raise ValueError(f"{name}: this run has no {' or '.join(map(str, MODEL_FOLDERS))}: {rebuild}")


def repro_commands() -> str:
    """The command that runs the pipeline, in this folder or where it can."""
    return "`dvc repro`" if Path("dvc.yaml").exists() else "`dvc repro` in the folder of a project"


@contextmanager
def named_errors(name: str | Path) -> Iterator[None]:
    """Errors of the user in the body, which does not know the model's name, are ValueErrors that begin with it."""
    try:
        yield
    except USER_ERRORS as error:
        raise ValueError(f"{name}: {error_line(error)}") from error


def load_named(name: str | Path, device: str = "auto", threads: int | None = None, **options: Any) -> LoadedModel:
    """The model of a path or a DVC run, as `load_model` loads it. Raises ValueError that begins with the name."""
    with fetch_model(name) as path:
        try:
            return load_model(path, device, threads, **options)
        except USER_ERRORS as error:
            given = str(Path(name))
            message = error_line(error).replace(str(path), given)
            is_named = message.startswith((f"{given}/", f"{given}: ", f"{given} "))
            raise ValueError(message if is_named else f"{name}: {message}") from error
